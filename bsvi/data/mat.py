"""MATLAB 5 files, read strictly: numeric arrays only, sizes checked before memory is taken, every checksum run.

A file is a header of 128 bytes and a row of elements, each a tag (type, length) and its bytes. A compressed element is
a zlib stream, which ends in a checksum, around one array element: flags, dimensions, name, numbers. Cells, structs,
objects and functions are refused when asked for, and nothing in a file is ever executed or unpickled.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from bsvi.data.integrity import BadFile, check_size, verify, warn_of_unguarded

_MATRIX, _COMPRESSED = 14, 15
# numbers as they are stored ("mi" types), and as MATLAB sees them ("mx" classes)
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_CLASS_NAME = {1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 16: "function", 17: "opaque"}
_CHUNK = 1 << 20


def read_mat(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the named numeric arrays of a MATLAB 5 file, in MATLAB's order of axes (first axis fastest).

    >>> import tempfile, scipy.io
    >>> path = Path(tempfile.mkdtemp()) / "x.mat"
    >>> scipy.io.savemat(path, {"x": np.arange(6.0).reshape(2, 3)}, do_compression=True)
    >>> read_mat(path, ("x",))["x"].tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    arrays: dict[str, np.ndarray] = {}
    unguarded = False
    guarded = verify(path, own_checksum=False)
    with path.open("rb") as file:
        order = _header(path, file)
        for kind, nbytes in _elements(path, file, order):
            element = _Element(path, file, order, nbytes, kind == _COMPRESSED)
            name, array = _array(element, names)
            element.finish()
            if name in arrays:
                raise BadFile(path, f"one array named {name}", "two")
            if array is not None:
                arrays[name] = array
                unguarded |= kind != _COMPRESSED
    if missing := [name for name in names if name not in arrays]:
        raise BadFile(path, f"the arrays {', '.join(names)}", f"no {' and no '.join(missing)}")
    if unguarded and not guarded:
        warn_of_unguarded(path)
    return arrays


def _header(path: Path, file: BufferedReader) -> str:
    head = file.read(128)
    if head[:8] == b"\x89HDF\r\n\x1a\n" or head[:10] == b"MATLAB 7.3":
        raise BadFile(path, "a MATLAB 5 file", "a MATLAB 7.3 file; save it again with -v7")
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(head[124:])
    if order is None or head[:6] != b"MATLAB":
        raise BadFile(path, "a MATLAB 5 file", f"the first bytes {head[:16]!r}")
    return order


def _elements(path: Path, file: BufferedReader, order: str) -> Iterator[tuple[int, int]]:
    end = path.stat().st_size
    while (at := file.tell()) < end:
        tag = file.read(8)
        kind, nbytes = struct.unpack(order + "2I", tag) if len(tag) == 8 else (0, 0)
        if kind not in (_MATRIX, _COMPRESSED):
            raise BadFile(path, f"an array at byte {at}", f"an element of type {kind}")
        if nbytes > end - at - 8:
            raise BadFile(path, f"{nbytes:,} bytes after byte {at + 8}", f"{end - at - 8:,}; the file is cut short")
        yield kind, nbytes
        if file.tell() != at + 8 + nbytes:
            raise BadFile(path, f"an array that ends at byte {at + 8 + nbytes}", f"an end at {file.tell()}")


class _Element:
    """The bytes of one array element, plain or inflated, handed out in exact amounts."""

    def __init__(self, path: Path, file: BufferedReader, order: str, stored: int, compressed: bool) -> None:
        self.path, self.order, self.stored = path, order, stored
        self._file, self._unread = file, stored
        self._inflater = zlib.decompressobj() if compressed else None
        self._left = 8 if compressed else stored  # bytes of the array that are still to come
        if compressed:
            kind, self._left = self.unpack("2I", self.take(8))
            if kind != _MATRIX:
                raise BadFile(path, "an array in each compressed element", f"type {kind}")

    def unpack(self, layout: str, block: bytes) -> tuple[int, ...]:
        return struct.unpack(self.order + layout, block)

    def take(self, count: int) -> bytes:
        block = bytearray(count)
        self.fill(memoryview(block))
        return bytes(block)

    def fill(self, target: memoryview) -> None:
        """Fill the target, or refuse the file if the element is shorter."""
        at, count = 0, len(target)
        if count > self._left:
            raise BadFile(self.path, f"{count:,} more bytes in an array", f"{self._left:,}")
        while at < count:
            block = self._some(min(_CHUNK, count - at))
            if not block:
                raise BadFile(self.path, f"{count:,} more bytes in an array", f"{at:,}; the file is cut short")
            target[at : at + len(block)] = block
            at += len(block)
        self._left -= count

    def part(self) -> tuple[int, int, int]:
        """Return (type, bytes, padding after them) of the next part; short parts have a tag of four bytes."""
        first = self.take(4)
        (word,) = self.unpack("I", first)
        if word >> 16:
            return word & 0xFFFF, min(word >> 16, 4), max(0, 4 - (word >> 16))
        (count,) = self.unpack("I", self.take(4))
        return word, count, -count % 8

    def small(self, kind: int, what: str) -> bytes:
        """Return the bytes of a small part, which must have this type."""
        found, count, padding = self.part()
        if found != kind or count > 256:
            raise BadFile(self.path, f"{what} of an array", f"a part of type {found} with {count:,} bytes")
        return self.take(count + padding)[:count]

    def finish(self) -> None:
        """Read what is left, and refuse an element whose end or checksum is not where it should be."""
        while self._left:
            self.take(min(_CHUNK, self._left))
        if self._inflater is None:
            return
        if self._some(1) or not self._inflater.eof or self._inflater.unused_data or self._unread:
            raise BadFile(self.path, "a compressed array that ends with its checksum", "another end")

    def _some(self, most: int) -> bytes:
        if self._inflater is None:
            return self._file.read(most)
        block = b""
        try:
            while not block and not self._inflater.eof:
                pending = self._inflater.unconsumed_tail or self._file.read(min(_CHUNK, self._unread))
                if not self._inflater.unconsumed_tail:
                    self._unread -= len(pending)
                    if not pending:
                        break
                block = self._inflater.decompress(pending, most)
        except zlib.error as error:
            raise BadFile(self.path, "a sound compressed array", f"damage: {error}") from None
        return block


def _array(element: _Element, names: tuple[str, ...]) -> tuple[str, np.ndarray | None]:
    path = element.path
    flags = element.small(6, "the flags")
    dims = element.small(5, "the dimensions")
    name = element.small(1, "the name").decode("latin-1")
    if name not in names:
        return name, None
    if len(flags) != 8 or len(dims) < 8 or len(dims) % 4:
        raise BadFile(path, f"flags and dimensions of {name}", f"{len(flags)} and {len(dims)} bytes")
    word, _ = element.unpack("2I", flags)
    if word & 0xFF not in _CLASS or word & 0x800:
        found = "complex numbers" if word & 0x800 else _CLASS_NAME.get(word & 0xFF, f"class {word & 0xFF}")
        raise BadFile(path, f"real numbers in {name}", found)
    shape = element.unpack(f"{len(dims) // 4}i", dims)
    kind, nbytes, _ = element.part()
    if kind not in _STORED:
        raise BadFile(path, f"numbers in {name}", f"a part of type {kind}")
    stored = np.dtype(element.order + _STORED[kind])
    if min(shape) < 1 or nbytes != math.prod(shape) * stored.itemsize:
        raise BadFile(path, f"{stored} numbers of shape {shape} in {name}", f"{nbytes:,} bytes")
    wanted = np.dtype(_CLASS[word & 0xFF])
    if not np.can_cast(stored, wanted):
        raise BadFile(path, f"{wanted} numbers in {name}", f"{stored} numbers")
    check_size(path, name, math.prod(shape) * max(wanted.itemsize, stored.itemsize))
    check_size(path, name, nbytes, element.stored)
    numbers = np.empty(math.prod(shape), stored)
    element.fill(numbers.view(np.uint8).data)
    return name, numbers.astype(wanted, copy=False).reshape(shape, order="F")
