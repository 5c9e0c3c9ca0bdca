"""A run on one's own images knows where they were and what they were; moved ones can be named again, others are refused."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from bsvi import cli
from tests.data.made_files import smooth

TRAIN = "digits --net.kind mlp --net.hidden 8 --net.latent 2 --svi.steps 2 --valid-every 2 --logger none --quiet --threads 1"
EVALUATE = ["--k", "2", "--iwae", "--threads", "1", "--device", "cpu", "--compile", "off", "--quiet"]


def write(folder, seed=0):
    folder.mkdir()
    for i, image in enumerate(smooth(20, 6, 6, seed)):
        Image.fromarray(image).save(folder / f"{i:02}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Images, and a run on them that was started with their relative path."""
    place = tmp_path_factory.mktemp("place")
    write(place / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert train("--out", "run", "--steps", "4") == 0
    return place


def train(*words):
    return cli.main(["train", *TRAIN.split(), "--data.name", "pictures", "--device", "cpu", *words])


def line(capsys, *words):
    """The one line that a refused command prints."""
    capsys.readouterr()
    assert cli.main([str(word) for word in words]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Traceback" not in said
    return said


def test_the_place_and_the_hash_of_the_images_are_in_the_run(made):
    data = json.loads((made / "run/config.json").read_text())["data"]
    assert data["path"] == str((made / "pictures").resolve()) and Path(data["path"]).is_absolute()
    assert len(data["sha256"]) == 64


def test_a_run_finds_its_images_from_any_folder(made, tmp_path, monkeypatch):
    run = shutil.copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evaluate", str(run), *EVALUATE]) == 0
    assert cli.main(["sample", str(run), "--rows", "1", "--columns", "2"]) == 0


def test_moved_images_can_be_named_again_and_are_checked(made, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, tmp_path / "old")
    (made / "pictures").rename(made / "hidden")  # they are no longer where the run says
    try:
        run = tmp_path / "old/run"
        for verb in ("evaluate", "gap", "sample"):
            assert "name the place where they are now with --data.name" in line(capsys, verb, run)
        (tmp_path / "old/pictures").rename(tmp_path / "renamed")
        assert cli.main(["evaluate", str(run), *EVALUATE, "--data.name", "renamed"]) == 0
        assert cli.main(["evaluate", str(run), *EVALUATE, "--data-dir", "renamed"]) == 0
        (tmp_path / "renamed").rename(tmp_path / "old/pictures")
        words = ["gap", str(run), "--k", "2", "--steps", "2", "--threads", "1", "--quiet"]
        assert cli.main([*words, "--data-dir", str(tmp_path / "old")]) == 0
        assert cli.main(["sample", str(run), "--rows", "1", "--columns", "2", "--data.name", "old/pictures"]) == 0
        write(tmp_path / "others", seed=1)
        assert "these are other images" in line(capsys, "evaluate", run, "--data.name", "others")
        assert "these are other images" in line(capsys, "evaluate", run, "--data-dir", "others")
        assert "no data set 'nowhere'" in line(capsys, "evaluate", run, "--data.name", "nowhere")
    finally:
        (made / "hidden").rename(made / "pictures")


def test_training_goes_on_from_any_folder_and_with_moved_images(made, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(made / "run", tmp_path / "run")
    (run / "result.json").unlink()  # it was stopped before its end
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--resume", str(run), "--quiet", "--logger", "none", "--threads", "1"]) == 0
    shutil.copytree(made / "pictures", tmp_path / "moved")
    (run / "result.json").unlink()
    assert train("--out", str(run), "--steps", "4", "--data.name", "moved") == 0
    write(tmp_path / "others", seed=1)
    assert "data.name: pictures -> others" in line(
        capsys, "train", *TRAIN.split(), "--out", run, "--steps", 4, "--data.name", "others"
    )
