"""SVHN's cropped digits (32x32), in grey: 73,257 + 531,131 extra training and 26,032 test images in the public files.

Grey is the luminance of ITU-R 601 in whole numbers, (19595 R + 38470 G + 7471 B + 32768) >> 16, which is 0.299 R +
0.587 G + 0.114 B rounded to the nearest of 0..255; pillow's mode "L" computes the same. An image is then exactly on the
grid j/255, and the 256-bin logistic likelihood is one of the data and not of an interpolation.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from bsvi.data.dataset import Dataset, Split, hold_out
from bsvi.data.integrity import BadFile
from bsvi.data.mat import read_mat

SIDE = 32
COUNTS = {"train_32x32.mat": 73_257, "test_32x32.mat": 26_032, "extra_32x32.mat": 531_131}  # of the public files
_CHUNK = 4096  # images turned grey at a time, so that the colours are never held in a wider type all at once


def read_cropped(path: Path) -> UInt8[np.ndarray, "n 32 32"]:
    """Return the images of one file `*_32x32.mat` as grey values 0..255, upright."""
    arrays = read_mat(path, ("X", "y"))
    pixels, labels = arrays["X"], arrays["y"]
    count = pixels.shape[-1] if pixels.ndim == 4 else 0
    if pixels.shape != (SIDE, SIDE, 3, count) or pixels.dtype != np.uint8:
        raise BadFile(path, f"X of shape ({SIDE}, {SIDE}, 3, n) and type uint8", f"{pixels.shape} {pixels.dtype}")
    if labels.shape != (count, 1) or not np.isin(labels, np.arange(1, 11)).all():
        raise BadFile(path, f"y of shape ({count}, 1) with labels 1..10", f"{labels.shape} or other labels")
    planes = pixels.T  # (n, colour, column, row), in the order of memory
    grey = np.empty((count, SIDE, SIDE), np.uint8)
    for at in range(0, count, _CHUNK):
        grey[at : at + _CHUNK] = to_grey(planes[at : at + _CHUNK]).transpose(0, 2, 1)
    return grey


def to_grey(planes: UInt8[np.ndarray, "n 3 a b"]) -> UInt8[np.ndarray, "n a b"]:
    """Return the grey values of red, green and blue planes.

    >>> to_grey(np.array([255, 0, 0], np.uint8).reshape(1, 3, 1, 1)).item()
    76
    """
    red, green, blue = (planes[:, colour].astype(np.uint32) for colour in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


def load_svhn(train: Path, test: Path, extra: Path | None = None, *, validation: int = 2000) -> Dataset:
    """Return SVHN from its files; `validation` images of train and extra together are held out."""
    parts = [read_cropped(path) for path in (train, extra) if path is not None]
    images, test_images = (
        torch.from_numpy(np.concatenate(parts)[:, None]),
        torch.from_numpy(read_cropped(test)[:, None]),
    )
    kept, out = hold_out(len(images), validation)
    return Dataset(
        "svhn",
        Split("train", images[kept], torch.from_numpy(kept), 255, binarise=False),
        Split("valid", images[out], torch.from_numpy(out), 255, binarise=False),
        Split("test", test_images, torch.arange(len(test_images)), 255, binarise=False),
        "logistic",
    )
