"""The archive of published runs: the same runs give the same bytes, and nothing in one reaches beyond its folder."""

import lzma
import os
import tarfile
from io import BytesIO

import numpy as np
import pytest

from bsvi.report import archive
from bsvi.report.runs import read_runs
from bsvi.system.reading import Damaged
from tests.report.made_runs import make_run


def made(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"of {name}")
    return folder


def packed(*members):
    """An archive of (name, type, link) members, whatever they are."""
    raw = BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, 3 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, BytesIO(b"abc"))
    return lzma.compress(raw.getvalue())


def everything_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_packed_comes_out_again(tmp_path):
    run = make_run(tmp_path / "runs", "bsvi", 0, steps=100)
    archive.pack(run.parent, tmp_path / archive.NAME)
    with archive.open_archive(tmp_path) as runs:
        assert everything_in(runs) == everything_in(run.parent) and everything_in(runs)
        (one,), warnings = read_runs([runs])
        (other,), _ = read_runs([run.parent])
        assert not warnings and one.config == other.config and one.train == other.train
        np.testing.assert_array_equal(one.scores["test"].values["kl"], other.scores["test"].values["kl"])
        left = runs
    assert not left.exists()


def test_the_same_runs_give_the_same_bytes_in_any_order_and_at_any_time(tmp_path):
    names = ["a-seed0/config.json", "b-seed1/log.txt", "a-seed0/scores-test.npz", "b-seed1/config.json"]
    first, second = made(tmp_path / "first", *names), made(tmp_path / "second", *reversed(names))
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    archive.pack(first, tmp_path / "first.tar.xz")
    archive.pack(second, tmp_path / "second.tar.xz")
    assert (tmp_path / "first.tar.xz").read_bytes() == (tmp_path / "second.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "first.tar.xz") as tar:
        assert {(member.mtime, member.uid, member.uname, member.mode) for member in tar} == {(0, 0, "", 0o644)}


def test_a_file_that_no_published_run_has_is_not_packed(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no file of a published run"):
        archive.pack(made(tmp_path / "runs", "a/checkpoint.pt"), tmp_path / archive.NAME)


@pytest.mark.parametrize(
    "member",
    [
        ("../config.json", tarfile.REGTYPE, ""),
        ("a/../../config.json", tarfile.REGTYPE, ""),
        ("/etc/config.json", tarfile.REGTYPE, ""),
        ("../a/config.json", tarfile.REGTYPE, ""),
        ("./config.json", tarfile.REGTYPE, ""),
        (".hidden/config.json", tarfile.REGTYPE, ""),
        ("a/config.json\n", tarfile.REGTYPE, ""),
        ("a/model.safetensors", tarfile.REGTYPE, ""),
        ("a/config.json", tarfile.SYMTYPE, "/etc/passwd"),
        ("a/config.json", tarfile.LNKTYPE, "b/config.json"),
        ("a", tarfile.SYMTYPE, ".."),
        ("a/log.txt", tarfile.FIFOTYPE, ""),
        ("a/log.txt", tarfile.CHRTYPE, ""),
        ("a/samples", tarfile.DIRTYPE, ""),
    ],
    ids=str,
)
def test_only_plain_files_of_a_run_are_unpacked(member, tmp_path):
    (tmp_path / archive.NAME).write_bytes(packed(member))
    with pytest.raises(Damaged, match="is no file of a published run"):
        archive.unpack(tmp_path / archive.NAME, tmp_path / "deep" / "runs")
    assert [path.name for path in tmp_path.rglob("*")] == [archive.NAME]


def test_what_is_too_large_or_damaged_is_refused_in_one_line(tmp_path, monkeypatch):
    whole = packed(("a/config.json", tarfile.REGTYPE, ""))
    path = tmp_path / archive.NAME
    large = lzma.compress(bytes(1 << 20), preset=9)  # unpacking it asks for 65 MB
    for data in (b"", b"no archive", whole[:-30], whole[:40], lzma.compress(b"no tar" * 500), large):
        path.write_bytes(data)
        with pytest.raises(Damaged) as error:
            archive.unpack(path, tmp_path / "runs")
        assert "\n" not in str(error.value) and archive.NAME in str(error.value)
    path.write_bytes(whole)
    monkeypatch.setattr(archive, "LIMIT", 1000)
    with pytest.raises(Damaged, match="more than 1,000 bytes"):
        archive.unpack(path, tmp_path / "runs")
    monkeypatch.setattr(archive, "PACKED", 100)
    with pytest.raises(OSError, match="no more than 100 are read"):
        archive.unpack(path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
