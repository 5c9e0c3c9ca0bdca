"""MNIST: 28x28 images, 60,000 for training and 10,000 for testing, binarised at every visit or once for all."""

from pathlib import Path

import torch

from bsvi.data.batches import binarise_once
from bsvi.data.dataset import Dataset, Split, hold_out
from bsvi.data.fashion_mnist import COUNTS, read_images

BINARISE = ("dynamic", "static")


def load_mnist(
    train: Path,
    test: Path,
    *,
    validation: int = 2000,
    binarise: str = "dynamic",
    counts: tuple[int, int] = COUNTS,
) -> Dataset:
    """Return MNIST from its two IDX files, with `validation` training images held out by the published seed.

    `binarise` is "dynamic" (training pixels are drawn at every visit) or "static" (drawn once, with the published seed).
    Validation and test images are drawn once either way, and are the same.
    """
    if binarise not in BINARISE:
        raise ValueError(f"mnist: binarise must be {' or '.join(BINARISE)}, got {binarise!r}")
    images, test_images = (read_images(path, count) for path, count in zip((train, test), counts, strict=True))
    kept, out = hold_out(len(images), validation)
    parts = (
        Split("train", torch.from_numpy(images[kept]), torch.from_numpy(kept), 255, binarise=True),
        Split("valid", torch.from_numpy(images[out]), torch.from_numpy(out), 255, binarise=True),
        Split("test", torch.from_numpy(test_images.copy()), torch.arange(len(test_images)), 255, binarise=True),
    )
    train_part, valid_part, test_part = map(binarise_once, parts) if binarise == "static" else parts
    return Dataset("mnist", train_part, valid_part, test_part, "bernoulli")
