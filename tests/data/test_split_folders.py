"""Folders of one's own images: splits go by their names, nothing is left out or pooled in silence, and nothing is written."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bsvi import cli
from bsvi.data import check, load
from bsvi.data.integrity import BadFile
from tests.data.made_files import smooth


def fill(folder: Path, **counts: int) -> Path:
    """Pictures in subfolders; '_' as the name is the folder itself."""
    for part, n in counts.items():
        place = folder if part == "_" else folder / part.replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(smooth(n, 6, 6, seed=len(part))):
            Image.fromarray(image).save(place / f"{i}.png")
    return folder


def counts(folder: Path) -> list[int]:
    return [len(split) for split in load(str(folder)).splits]


@pytest.mark.parametrize("valid", ["val", "valid", "validation", "Val", "VALIDATION"])
def test_splits_are_understood_in_any_case(tmp_path: Path, valid: str) -> None:
    assert counts(fill(tmp_path / "a", **{"Train": 10, valid: 3, "TEST": 4})) == [10, 3, 4]
    arrays = {"TRAIN": smooth(10, 5, 5), valid: smooth(3, 5, 5), "test": smooth(4, 5, 5), "labels": np.zeros(10)}
    np.savez(tmp_path / "x.npz", **arrays)
    assert counts(tmp_path / "x.npz") == [10, 3, 4]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"train": 9, "cats": 2}, "expected nothing beside train, found cats"),
        ({"train": 9, "test": 2, "_": 3}, r"expected nothing beside test, train, found 0.png and 2 more"),
        ({"train": 9, "val": 2, "valid": 3}, "expected one valid part, found several"),
        ({"Train": 9, "train": 2}, "expected one train part, found several"),
        ({"val": 9, "test": 2}, "expected a part named train, found only"),
        ({"training": 9, "testing": 2}, "rename it to"),
        ({"train": 9, "dev": 2}, "found dev; rename it to valid"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_what_could_be_lost_or_mixed_up_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: dict[str, int], said: str
) -> None:
    folder = fill(tmp_path / "images", **parts)
    with pytest.raises(BadFile, match=said):
        load(str(folder))
    assert cli.main(["data", "check", str(folder)]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "Traceback" not in line


def test_images_beside_the_splits_of_an_archive_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train=smooth(9, 5, 5), extra=smooth(3, 5, 5))
    with pytest.raises(BadFile, match="expected no images beside train, found extra"):
        load(str(tmp_path / "x.npz"))


def test_files_that_are_no_pictures_may_lie_beside_the_splits(tmp_path: Path) -> None:
    folder = fill(tmp_path / "images", train=9, test=2)
    (folder / "README.txt").write_text("mine")
    (folder / ".hidden").mkdir()
    check(folder, record_hashes=True)
    assert (folder / "SHA256SUMS").exists() and counts(folder) == [8, 1, 2]


def test_folders_that_are_taken_together_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bsvi.data"):
        assert counts(fill(tmp_path / "one", _=9)) == [7, 1, 1] and not caplog.records
        assert counts(fill(tmp_path / "two", cats=5, dogs=7)) == [10, 1, 1]
        assert "12 pictures of 2 folders (cats, dogs) are taken together" in caplog.text
        caplog.clear()
        assert counts(fill(tmp_path / "three", train__cats=5, train__dogs=6, test=4)) == [10, 1, 4]
        assert "11 pictures of 2 folders (cats, dogs)" in caplog.text


def test_what_would_make_us_wait_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="no data set"):
        load(str(tmp_path / "x.npy"))


# --- data check -----------------------------------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_data_check_writes_nothing_unless_it_is_asked_to(tmp_path, monkeypatch, capsys) -> None:
    folder = fill(tmp_path / "images", _=9)
    monkeypatch.chdir(folder)
    before = everything(tmp_path)
    for name in (".", str(folder), "digits"):
        assert cli.main(["data", "check", name]) == 0
    assert everything(tmp_path) == before and "contact sheet" not in capsys.readouterr().out
    assert cli.main(["data", "check", ".", "--sheet", "../sheet.png"]) == 0
    assert "contact sheet ../sheet.png" in capsys.readouterr().out
    assert set(everything(tmp_path)) - set(before) == {"sheet.png"}


def test_a_contact_sheet_never_comes_into_the_data(tmp_path, monkeypatch, capsys) -> None:
    folder = fill(tmp_path / "images", train=9)
    np.save(tmp_path / "x.npy", smooth(9, 5, 5))
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    before = everything(tmp_path)
    for name, sheet in (
        (".", "sheet.png"),
        (str(folder), "train/new/sheet.png"),
        (str(folder), str(tmp_path / "link" / "s.png")),
        (str(tmp_path / "x.npy"), "../x.npy"),
    ):
        assert cli.main(["data", "check", name, "--sheet", sheet]) == 1
        line = capsys.readouterr().err
        assert "would lie in the data themselves" in line and line.count("\n") == 1
    assert everything(tmp_path) == before


def test_data_check_takes_a_size(tmp_path, capsys) -> None:
    for i in range(9):
        Image.fromarray(np.full((20 + i, 30), 20 * i, np.uint8)).save(tmp_path / f"{i}.png")
    assert cli.main(["data", "check", str(tmp_path)]) == 1
    assert "--size" in capsys.readouterr().err
    assert cli.main(["data", "check", str(tmp_path), "--size", "8"]) == 0
    assert "images of 8x8, bernoulli" in capsys.readouterr().out
    assert cli.main(["data", "check", str(tmp_path), "--size", "8x10", "--binarise", "none"]) == 0
    assert "images of 8x10, logistic" in capsys.readouterr().out
    for wrong in ("0", "eight", "8x", "x"):
        with pytest.raises(SystemExit) if wrong != "0" else pytest.raises(AssertionError):
            assert cli.main(["data", "check", str(tmp_path), "--size", wrong]) == 0
    assert cli.main(["data", "check", "digits", "--size", "8"]) == 1
