"""What a user can get wrong with evaluate, gap, sample and data is one line without a traceback, and an exit code."""

import os

import numpy as np
import pytest
from PIL import Image

from bsvi import cli

HUGE = str(10**30)


def refused(capsys, *words):
    """The last line of a command that must fail."""
    capsys.readouterr()
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr().err
    assert code in (1, 2) and "Traceback" not in said and said.strip(), words
    assert code == 2 or said.count("\n") == 1, said  # code 2 comes with the usage
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        *[
            ("evaluate", [flag, value])
            for flag in ("--k", "--examples", "--batch-size", "--iwae")
            for value in ("0", HUGE)
        ],
        *[("evaluate", ["--ais", value]) for value in ("-1", HUGE)],
        *[
            ("gap", [flag, value])
            for flag in ("--k", "--steps", "--worst", "--examples")
            for value in ("0", "-2", HUGE)
        ],
        *[(verb, ["--seed", value]) for verb in ("evaluate", "gap", "sample") for value in ("-1", str(2**63), HUGE)],
        *[(verb, ["--threads", value]) for verb in ("evaluate", "gap") for value in ("-1", "1000000000")],
        *[("sample", [flag, value]) for flag in ("--rows", "--columns") for value in ("0", HUGE)],
        *[(verb, ["--data.name", ""]) for verb in ("evaluate", "gap", "sample")],
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_numbers_without_sense_are_refused_before_the_work(trained, capsys, verb, words):
    before = sorted(os.listdir(trained))
    assert words[0].lstrip("-") in refused(capsys, verb, trained, *words) or words == ["--data.name", ""]
    assert sorted(os.listdir(trained)) == before


def test_a_file_that_is_no_run_folder_is_called_so(trained, capsys):
    assert "is no run folder" in refused(capsys, "evaluate", trained / "config.json")


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1), (1, 2)])
def test_one_column_of_samples_is_enough(trained, tmp_path, rows, columns):
    words = ["sample", trained, "--rows", rows, "--columns", columns, "--out", tmp_path, "--device", "cpu"]
    assert cli.main([str(word) for word in words]) == 0
    with np.load(tmp_path / "reconstructions.npz") as arrays:
        assert arrays["images"].shape == (2, columns, 1, 8, 8)
    with np.load(tmp_path / "interpolations.npz") as arrays:
        assert arrays["images"].shape == (1, columns, 1, 8, 8)


@pytest.mark.parametrize("name", ["a\nb.png", "a\x1b[2Jb.png", os.fsdecode(b"a\xffb.png")], ids=ascii)
def test_pictures_whose_names_break_lines_are_refused(tmp_path, capsys, name):
    for each in ("0.png", "1.png", "2.png", name):
        Image.new("L", (4, 4), 90).save(tmp_path / each)
    for words in ([], ["--record"]):
        assert "rename it" in refused(capsys, "data", "check", tmp_path, *words)
    assert not (tmp_path / "SHA256SUMS").exists()


def test_an_empty_name_is_no_data_set(capsys):
    assert "no data set ''" in refused(capsys, "data", "check", "")
