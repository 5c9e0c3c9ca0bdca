"""Omniglot as in Burda et al.: 28x28 grey values, 24,345 training and 8,070 test images, dynamically binarised."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32

from bsvi.data.dataset import Dataset, Split, hold_out
from bsvi.data.integrity import BadFile
from bsvi.data.mat import read_mat

COUNTS = (24_345, 8_070)
SIDE = 28


def read_chardata(
    path: Path, counts: tuple[int, int] = COUNTS
) -> tuple[Float32[np.ndarray, "train 28 28"], Float32[np.ndarray, "test 28 28"]]:
    """Return (train, test) from `chardata.mat`, upright: its columns are images stored column by column."""
    arrays = read_mat(path, ("data", "testdata"))
    return _images(path, "data", arrays["data"], counts[0]), _images(path, "testdata", arrays["testdata"], counts[1])


def load_omniglot(path: Path, *, validation: int = 2000, counts: tuple[int, int] = COUNTS) -> Dataset:
    """Return Omniglot from `chardata.mat`, with `validation` training images held out by the published seed."""
    train, test = read_chardata(path, counts)
    kept, out = hold_out(len(train), validation)
    images = torch.from_numpy(train[:, None])
    return Dataset(
        "omniglot",
        Split("train", images[kept], torch.from_numpy(kept), 1, binarise=True),
        Split("valid", images[out], torch.from_numpy(out), 1, binarise=True),
        Split("test", torch.from_numpy(test[:, None]), torch.arange(len(test)), 1, binarise=True),
        "bernoulli",
    )


def _images(path: Path, name: str, columns: np.ndarray, count: int) -> Float32[np.ndarray, "n 28 28"]:
    if columns.shape != (SIDE * SIDE, count):
        raise BadFile(path, f"{name} of shape {(SIDE * SIDE, count)}", f"{columns.shape}")
    low, high = columns.min(), columns.max()
    if not (low >= 0 and high <= 1):  # also true of NaN
        raise BadFile(path, f"grey values in [0, 1] in {name}", f"values from {low} to {high}")
    upright = columns.T.reshape(count, SIDE, SIDE).transpose(0, 2, 1)
    return np.ascontiguousarray(upright, np.float32)
