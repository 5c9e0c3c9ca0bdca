"""NumPy archives of a run folder, read with limits on bytes and shapes before memory is taken; nothing in one can be code."""

import math
import os
import struct
import zipfile
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import numpy as np

from bsvi.system.files import open_to_read, printable
from bsvi.system.reading import Damaged

MOST = 64  # arrays of an archive: scores have some twenty
LIMIT = 1 << 28  # bytes of all its arrays together: scores of a million images

# what zipfile raises for one or another field that makes no sense
_FIELDS = (OSError, zlib.error, struct.error, EOFError, LookupError, RuntimeError, TypeError, OverflowError)


def read_arrays(path: Path, limit: int = LIMIT) -> dict[str, np.ndarray]:
    """The arrays of numbers of an npz archive; Damaged or an OSError where it cannot be read."""
    with open_to_read(path) as file:
        try:
            if os.fstat(file.fileno()).st_size > limit:
                raise ValueError(f"more than {limit:,} bytes")
            return _archive(cast(BufferedIOBase, file), limit)
        except (ValueError, zipfile.BadZipFile) as error:
            raise Damaged(f"{printable(path)} is damaged ({printable(error, 100)})") from None
        except _FIELDS as error:
            raise Damaged(f"{printable(path)} is damaged ({type(error).__name__})") from None


def _archive(file: BufferedIOBase, limit: int) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST:
            raise ValueError(f"{len(members)} arrays, where {MOST} are the most")
        if sum(member.file_size for member in members) > limit:
            raise ValueError(f"more than {limit:,} bytes of arrays")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
                raise ValueError(f"{printable(name, 40)} is packed in an unknown way")
            with archive.open(member) as opened:
                arrays[name] = _array(cast(BufferedIOBase, opened), member.file_size)
    return arrays


def _array(file: BufferedIOBase, size: int) -> np.ndarray:
    """One array, of as many bytes as its header says and the archive holds."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(file)
    except Exception as error:  # numpy evaluates the header as a literal: damage can raise nearly anything
        raise ValueError(f"an array's header cannot be read ({type(error).__name__})") from None
    if dtype.hasobject or dtype.kind not in "buif":
        raise ValueError(f"an array of {printable(dtype, 40)}, not of numbers")
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted > size:
        raise ValueError(f"an array of {wanted:,} bytes in {size:,}")
    body = file.read(wanted)
    if len(body) < wanted:
        raise ValueError(f"an array of {wanted:,} bytes in {len(body):,}")
    return np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
