"""FashionMNIST: 28x28 grey images, 60,000 for training and 10,000 for testing, on the grid j/255."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from bsvi.data.dataset import Dataset, Split, hold_out
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile

COUNTS = (60_000, 10_000)
SIDE = 28


def load_fashion_mnist(train: Path, test: Path, *, validation: int = 2000, counts: tuple[int, int] = COUNTS) -> Dataset:
    """Return FashionMNIST from its two IDX files, with `validation` training images held out by the published seed."""
    images, test_images = (read_images(path, count) for path, count in zip((train, test), counts, strict=True))
    kept, out = hold_out(len(images), validation)
    return Dataset(
        "fashion-mnist",
        Split("train", torch.from_numpy(images[kept]), torch.from_numpy(kept), 255, binarise=False),
        Split("valid", torch.from_numpy(images[out]), torch.from_numpy(out), 255, binarise=False),
        Split("test", torch.from_numpy(test_images.copy()), torch.arange(len(test_images)), 255, binarise=False),
        "logistic",
    )


def read_images(path: Path, count: int) -> UInt8[np.ndarray, "n 1 28 28"]:
    """Return the images of an IDX file of MNIST's size, which must be `count`."""
    images = read_idx_images(path)
    if images.shape != (count, SIDE, SIDE):
        raise BadFile(path, f"{count:,} images of {SIDE}x{SIDE}", "{:,} of {}x{}".format(*images.shape))
    return images[:, None]
