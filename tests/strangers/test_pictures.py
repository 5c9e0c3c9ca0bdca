"""What is written beside a run and read by the report: no link among it is followed, and no picture is too large."""

import os
import struct
import zlib
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from bsvi.cli import main
from bsvi.experiments import pictures
from bsvi.report.experiments import Row
from bsvi.report.figures import _picture
from bsvi.sweeps.jobs import launch, read_complaint
from bsvi.system.files import UnsafeFile
from bsvi.training.watch import TensorBoard
from tests.strangers.made import make_run

IMAGES = torch.zeros(1, 2, 1, 4, 4)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width, height):
    """A small PNG that says it is large."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 10_000)) + chunk(b"IEND", b"")


def test_a_picture_that_cannot_be_read_is_passed_over(tmp_path):
    samples, outside = tmp_path / "run" / "samples", tmp_path / "outside.png"
    samples.mkdir(parents=True)
    Image.fromarray(np.full((4, 4), 7, np.uint8)).save(outside)
    (samples / "a.png").symlink_to(outside)
    os.mkfifo(samples / "b.png")
    for name, data in {
        "c": b"",
        "d": b"\x89PNG\r\n\x1a\n",
        "e": bomb(30_000, 30_000),
        "f": bomb(9_000, 9_000),
        "g": bomb(2**31 - 1, 2**31 - 1),
    }.items():
        (samples / f"{name}.png").write_bytes(data)
    (tmp_path / "run" / "more").symlink_to(tmp_path)
    Image.fromarray(np.full((3, 3), 9, np.uint8)).save(tmp_path / "jpeg.png", format="JPEG")
    bad = [*sorted(samples.iterdir()), tmp_path / "run" / "more" / "outside.png", tmp_path / "jpeg.png"]
    row = Mock(spec=Row, runs=[SimpleNamespace(path=tmp_path / "run", pictures=bad)])
    assert _picture(row) is None
    Image.fromarray(np.full((4, 4), 5, np.uint8)).save(samples / "good.png")
    row.runs[0].pictures.append(samples / "good.png")
    assert _picture(row)[0, 0] == 5


def test_pictures_are_not_written_through_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "samples").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFile, match="samples is a link"):
        pictures.write_grid(tmp_path / "run" / "samples" / "prior", IMAGES, tmp_path / "run")
    (tmp_path / "run" / "gap-worst.png").symlink_to(tmp_path / "victim")
    assert pictures.write_grid(tmp_path / "run" / "gap-worst", IMAGES, tmp_path / "run").read_bytes()[1:4] == b"PNG"
    assert (tmp_path / "victim").read_text() == "precious" and not list((tmp_path / "elsewhere").iterdir())


def test_tensorboard_is_not_written_through_a_link(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFile, match="tensorboard is a link"):
        TensorBoard(tmp_path / "run").start(0)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["symlink_to", "hardlink_to"])
def test_the_complaints_of_a_sweep_are_not_written_through_a_link(tmp_path, kind):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    getattr(tmp_path / "run" / "errors.txt", kind)(tmp_path / "victim")
    with pytest.raises(UnsafeFile, match=r"errors\.txt"):
        launch(tmp_path / "run", ["--version"])
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_last_complaint_of_a_sweep_is_one_printable_line(tmp_path):
    (tmp_path / "errors.txt").write_bytes(b"x" * 10**6 + b"\nfirst\nlast \x1b[2J\xff\n")
    assert read_complaint(tmp_path) == "last \\x1b[2J\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("name", ["tables", "index.html", "figures"])
def test_a_report_is_not_written_through_a_link(tmp_path, name, capsys, monkeypatch):
    if name != "figures":
        monkeypatch.setattr("bsvi.report.make.FIGURES", ())  # they take most of the time
        monkeypatch.setattr("bsvi.report.make.FIRST_FIGURES", ())
    make_run(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / name).symlink_to(tmp_path / "elsewhere" / ("" if name != "index.html" else "page"))
    code = main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report")])
    assert code == (0 if name == "index.html" else 1) and len(capsys.readouterr().err.splitlines()) == code
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("name", ["lock", "log.txt", "metrics.jsonl"])
def test_resuming_does_not_write_through_a_link(tmp_path, name, capsys):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    assert main(["train", "--resume", str(tmp_path / "run")]) == 1
    assert f"{name} is a link" in capsys.readouterr().err and (tmp_path / "victim").read_text() == "precious"
