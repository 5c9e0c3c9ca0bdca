"""Files made to do harm: nothing runs, nothing is written, and no memory is taken for what is only declared."""

import gzip
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bsvi.data import integrity
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile
from bsvi.data.mat import read_mat
from bsvi.data.npy import read_npy, read_npz
from bsvi.data.pictures import read_pictures
from tests.data.made_files import smooth


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.path,)


@pytest.fixture
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def npy(shape: tuple[int, ...], body: bytes, descr: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + body


def mat(element: bytes, compressed: bool) -> bytes:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\x01IM"
    if compressed:
        return head + struct.pack("<2I", 15, len(zlib.compress(element))) + zlib.compress(element)
    return head + element


def matrix(name: bytes, dims: tuple[int, ...], body: bytes, declared: int) -> bytes:
    size = struct.pack("<2I", 5, 4 * len(dims)) + struct.pack(f"<{len(dims)}i", *dims) + bytes(-4 * len(dims) % 8)
    inner = struct.pack("<4I", 6, 8, 9, 0) + size + struct.pack("<2I", 1, len(name)) + name.ljust(8, b"\0")
    inner += struct.pack("<2I", 2, declared) + body
    return struct.pack("<2I", 14, len(inner)) + inner


def test_the_canary_sings_when_it_is_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()  # so that the tests below can fail


@pytest.mark.parametrize("kind", ["npy", "npz", "bare pickle"])
def test_pickles_are_never_loaded(tmp_path: Path, kind: str) -> None:
    canary, path = tmp_path / "canary", tmp_path / f"x.{kind[:3]}"
    objects = np.array([Canary(canary), 1], object)
    if kind == "npy":
        np.save(path, objects, allow_pickle=True)
    elif kind == "npz":
        np.savez(path, images=objects)
    else:
        path = tmp_path / "x.npy"
        path.write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(BadFile, match=r"found pickled objects|expected x\.npy to start as a NumPy array"):
        (read_npz if kind == "npz" else read_npy)(path)
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["../evil.npy", "/evil.npy", "a/b.npy", "a\\b.npy", "...npy", "C:evil.npy", "evil.txt"]
)
def test_archive_entries_with_other_than_plain_names_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr(name, npy((1,), b"a"))
    with pytest.raises(BadFile, match="expected plainly named arrays"):
        read_npz(folder / "x.npz")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "x.npz"]


def test_two_archive_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", npy((1,), b"a"))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy((1,), b"b"))
    with pytest.raises(BadFile, match="expected plainly named arrays"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("shape", [(10**6, 28, 28), (10**12,), (2**40, 2**40)])
@pytest.mark.parametrize("zipped", [True, False])
def test_numpy_arrays_that_declare_more_than_they_hold_take_no_memory(
    tmp_path: Path, shape: tuple, zipped: bool
) -> None:
    path = tmp_path / ("x.npz" if zipped else "x.npy")
    if zipped:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("images.npy", npy(shape, bytes(1000)))
    else:
        path.write_bytes(npy(shape, bytes(1000)))
    with pytest.raises(BadFile, match=r"declared|bytes in"):
        (read_npz if zipped else read_npy)(path)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dims", [(30_000, 60_000), (2**31 - 1, 2**31 - 1), (65536, 65537)])
def test_mat_arrays_that_declare_more_than_they_hold_take_no_memory(
    tmp_path: Path, dims: tuple, compressed: bool
) -> None:
    declared = dims[0] * dims[1] % 2**32  # what fits into the tag
    (tmp_path / "x.mat").write_bytes(mat(matrix(b"data", dims, bytes(4096), declared), compressed))
    with pytest.raises(BadFile, match=r"cannot hold as many|numbers of shape|declared"):
        read_mat(tmp_path / "x.mat", ("data",))


@pytest.mark.usefixtures("little_memory")
def test_idx_that_declares_more_than_it_holds_takes_no_memory(tmp_path: Path) -> None:
    for n in (10**6, 2**32 - 1):
        (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", n, 28, 28) + bytes(1000)))
        with pytest.raises(BadFile, match=r"cannot hold as many|declared"):
            read_idx_images(tmp_path / "x.gz")


@pytest.mark.usefixtures("little_memory")
def test_bombs_are_refused_before_they_unfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "MAX_BYTES", 1 << 20)
    bomb = np.zeros(2 << 20, np.uint8)  # twice what is allowed, and compresses a thousandfold
    np.savez_compressed(tmp_path / "x.npz", images=bomb)
    (tmp_path / "x.mat").write_bytes(mat(matrix(b"data", (1, len(bomb)), bomb.tobytes(), len(bomb)), True))
    (tmp_path / "x.gz").write_bytes(
        gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 1, 1, len(bomb)) + bomb.tobytes())
    )
    tracemalloc.reset_peak()  # making the bombs took memory
    for read in (
        lambda: read_npz(tmp_path / "x.npz"),
        lambda: read_mat(tmp_path / "x.mat", ("data",)),
        lambda: read_idx_images(tmp_path / "x.gz"),
    ):
        with pytest.raises(BadFile, match="expected at most 1,048,576 bytes"):
            read()


@pytest.mark.usefixtures("little_memory")
def test_pictures_that_are_decompression_bombs_are_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    # pillow itself stops only far beyond our limit, so the first is for us to refuse
    for side, found in ((8_000, "found 8000x8000"), (30_000, "bomb"), (2**31 - 1, "found")):
        head = chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0))
        body = chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")
        (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + body)
        with pytest.raises(BadFile, match=f"at most 50,000,000 pixels, .*{found}"):
            read_pictures(tmp_path, (28, 28))


def test_files_of_another_format_under_a_picture_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    with pytest.raises(BadFile, match="expected a sound PNG picture"):
        read_pictures(tmp_path)
    Image.fromarray(smooth(1, 8, 8)[0]).save(tmp_path / "x.png", format="TIFF")
    with pytest.raises(BadFile, match="expected a sound PNG picture"):
        read_pictures(tmp_path)


@pytest.mark.parametrize("change", [lambda z: z[:-2], lambda z: z[:-4] + b"1234", lambda z: z + b"more"])
def test_compressed_mat_arrays_end_with_their_checksum(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    stream = zlib.compress(matrix(b"data", (2, 4), b"abcdefgh", 8))
    head = mat(b"", False)
    (tmp_path / "x.mat").write_bytes(head + struct.pack("<2I", 15, len(stream)) + stream)
    assert read_mat(tmp_path / "x.mat", ("data",))["data"].shape == (2, 4)
    stream = change(stream)
    (tmp_path / "x.mat").write_bytes(head + struct.pack("<2I", 15, len(stream)) + stream)
    with pytest.raises(BadFile, match=r"a compressed array that ends with its checksum|a sound compressed array"):
        read_mat(tmp_path / "x.mat", ("data",))


def test_matlab_7_3_files_are_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "x.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n")
    with pytest.raises(BadFile, match=r"found a MATLAB 7.3 file; save it again with -v7"):
        read_mat(tmp_path / "x.mat", ("data",))
