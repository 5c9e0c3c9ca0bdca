"""IDX files (the format of MNIST and FashionMNIST), raw or gzipped."""

import gzip
import struct
import zlib
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from bsvi.data.integrity import BadFile, check_size, verify, warn_of_unguarded

_IMAGES = b"\0\0\x08\x03"  # unsigned bytes, three dimensions
_GZIP = b"\x1f\x8b"


def read_idx_images(path: Path) -> UInt8[np.ndarray, "n height width"]:
    """Return the images of an IDX file, read to its end so that gzip's own checksum runs.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "two-images.gz"
    >>> _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, *range(6)])))
    >>> read_idx_images(path).tolist()
    [[[0, 1, 2]], [[3, 4, 5]]]
    """
    stored = path.stat().st_size
    with path.open("rb") as raw:
        zipped = raw.read(2) == _GZIP
    guarded = verify(path, own_checksum=zipped)
    try:
        with gzip.GzipFile(path) if zipped else path.open("rb") as file:
            images = _read(path, file, stored if zipped else None)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadFile(path, "a complete gzip stream", f"damage: {error}") from None
    if not guarded:
        warn_of_unguarded(path)
    return images


def _read(path: Path, file: BufferedIOBase, stored: int | None) -> UInt8[np.ndarray, "n height width"]:
    head = file.read(16)
    if head[:4] != _IMAGES or len(head) < 16:
        raise BadFile(path, "an IDX file of images (first bytes 00 00 08 03)", f"{head[:4].hex(' ') or 'nothing'}")
    n, height, width = struct.unpack(">3I", head[4:])
    nbytes = n * height * width
    if not nbytes:
        raise BadFile(path, "images", f"the empty shape {n} x {height} x {width}")
    check_size(path, f"{n} images of {height}x{width}", nbytes, stored)
    body = file.read(nbytes)
    if len(body) < nbytes or file.read(1):
        found = f"{len(body):,}" if len(body) < nbytes else "more"
        raise BadFile(path, f"{nbytes:,} bytes for {n} images of {height}x{width}", found)
    return np.frombuffer(body, np.uint8).reshape(n, height, width)
