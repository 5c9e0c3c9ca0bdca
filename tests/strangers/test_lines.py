"""What a file says reaches a terminal or a log as one printable line, and what it lacks is one line too."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from bsvi.cli import main
from bsvi.data import check, load
from bsvi.experiments.changes import read_toml
from bsvi.experiments.config import EXPERIMENTS
from tests.strangers.made import make_run


def complaint(capsys, *words):
    """The one line that a failing command says."""
    assert main([*words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bsvi {words[0]}: ") and line.isprintable()
    return line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"seed = 1\nexperiment = '\xff'\n", "is not TOML: byte 23 is not UTF-8"),
        (b"a = " + b"[" * 100_000 + b"]" * 100_000, "is not TOML: it is nested too deep"),
        (b"seed = " + b"9" * 5000, "is not TOML"),
        (b"# " + b"x" * (1 << 21), "is not TOML: more than 1,048,576 bytes"),
        (b'experiment = "a\\nb"', "experiment = .*printable characters"),
        (b'experiment = "../../etc"', "experiment = .*leaves the folder"),
        (b'[data]\nname = "a\\u001b[2J"', "data.name = .*control characters"),
        (b"[net]\nlatent = 1000000000", "net.latent = .*less than or equal"),
        (b'"a\\u001b[2J" = 1', "unknown field"),
    ],
)
def test_a_bad_toml_file_is_one_line(tmp_path, capsys, text, reason):
    (tmp_path / "x.toml").write_bytes(text)
    with pytest.raises(ValueError, match=reason):
        read_toml(tmp_path / "x.toml", EXPERIMENTS["digits"])
    assert "x.toml" in complaint(capsys, "train", "digits", "--config", str(tmp_path / "x.toml"))


@pytest.mark.parametrize(
    "result",
    [
        {"steps": "2"},
        {"best_valid_bound": "x\n\x1b[2J"},
        {"best_valid_bound": []},
        {"best_step": None},
        {"steps": True},
    ],
)
def test_a_damaged_result_is_one_line(tmp_path, capsys, result):
    make_run(tmp_path)
    good = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps(good | result))
    assert "result.json is damaged" in complaint(capsys, "train", "--resume", str(tmp_path))
    (tmp_path / "result.json").write_text("[" * 100_000)
    assert "result.json is damaged" in complaint(capsys, "train", "--resume", str(tmp_path))


@pytest.mark.parametrize("config", [None, [], "x", {"net": 5}, {"x\n\x1b[2J": 1}, {"experiment": "a\necho owned"}])
def test_a_damaged_configuration_is_one_line(tmp_path, capsys, config):
    make_run(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(good | {"config": config}))
    (tmp_path / "result.json").unlink()
    complaint(capsys, "train", "--resume", str(tmp_path))
    assert not (tmp_path / "log.txt").exists()


def test_names_of_files_that_are_no_printable_line_are_named_in_one(tmp_path, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, name in enumerate(["a", "b", "c", "数字"]):
        Image.fromarray(np.full((8, 8), 40 * i + 50, np.uint8)).save(folder / f"{name}.png")
    assert len(load(str(folder)).train) == 2
    (folder / "数字.png").rename(folder / "d\x1b[2J\n.png")
    assert r"d\x1b[2J\n.png" in complaint(capsys, "data", "check", str(folder))
    np.save(tmp_path / "a\nb.npy", np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8))
    assert "a b.npy" in complaint(capsys, "data", "check", str(tmp_path / "a\nb.npy"), "--record")
    assert all(line.isprintable() for line in str(check(tmp_path / "a\nb.npy")).splitlines())


def test_data_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no data set"):
        load(str(tmp_path / "pipe"))
