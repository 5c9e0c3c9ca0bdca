"""NumPy files, read strictly: numbers only, no pickle, sizes checked before memory is taken, every byte counted."""

import math
import struct
import zipfile
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import numpy as np

from bsvi.data.integrity import BadFile, check_size, verify, warn_of_unguarded

_MAGIC = b"\x93NUMPY"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

# what zipfile raises for one or another field that makes no sense
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, LookupError)


def read_npy(path: Path) -> np.ndarray:
    """Return the array of an .npy file; its bytes must be exactly those that its header declares.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> np.save(path, np.arange(3))
    >>> read_npy(path).tolist()
    [0, 1, 2]
    """
    guarded = verify(path, own_checksum=False)
    with path.open("rb") as file:
        array = _read(path, path.name, file, path.stat().st_size)
    if not guarded:
        warn_of_unguarded(path)
    return array


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz archive, which holds a checksum for each; nothing is extracted to disk."""
    verify(path, own_checksum=True)
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name == member.filename or name in arrays or any(sign in name for sign in "/\\:\0") or ".." in name:
                    raise BadFile(path, "plainly named arrays", f"the entry {member.filename[:80]!r}")
                if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise BadFile(path, f"{name} stored or deflated", "another method or encryption")
                check_size(path, name, member.file_size, min(member.compress_size, path.stat().st_size))
                with archive.open(member) as file:
                    arrays[name] = _read(path, name, cast(BufferedIOBase, file), member.file_size)
    except BadFile:
        raise
    except (*_DAMAGE, OSError, ValueError) as error:
        raise BadFile(path, "a sound .npz archive", f"damage: {error}") from None
    if not arrays:
        raise BadFile(path, "arrays", "an empty archive")
    return arrays


def _read(path: Path, name: str, file: BufferedIOBase, size: int) -> np.ndarray:
    head = file.read(8)
    reader = _READERS.get((head[6], head[7])) if len(head) == 8 and head[:6] == _MAGIC else None
    if reader is None:
        raise BadFile(path, f"{name} to start as a NumPy array", repr(head))
    try:
        shape, fortran, dtype = reader(file)
    except Exception as error:  # numpy evaluates the header as a literal: damage can raise nearly anything there
        line = (str(error).splitlines() or [type(error).__name__])[0][:80]
        raise BadFile(path, f"a sound header of {name}", f"damage: {line}") from None
    if dtype.hasobject or dtype.kind not in "buif":
        raise BadFile(path, f"numbers in {name}", f"{'pickled objects' if dtype.hasobject else dtype}")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 1:
        raise BadFile(path, f"images in {name}", f"the shape {shape}")
    check_size(path, name, nbytes)
    if nbytes > size:
        raise BadFile(path, f"{nbytes:,} bytes in {name} for {dtype} numbers of shape {shape}", f"{size:,}")
    body = file.read(nbytes)
    if len(body) < nbytes or file.read(1):
        found = f"{len(body):,}" if len(body) < nbytes else "more"
        raise BadFile(path, f"{nbytes:,} bytes in {name} for {dtype} numbers of shape {shape}", found)
    return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
