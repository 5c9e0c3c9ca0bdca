"""The embedded default: 1,797 handwritten digits of 8x8 pixels, so that everything runs without a download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998),
doi 10.24432/C50P49, licence CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/); the 1,797 images of its test
part, in the order in which scikit-learn distributes them. Changed here: stored as bytes in one compressed file,
`digits.npz`, with the arrays `images` (1797, 8, 8), whole numbers 0..16, and `labels` (1797,).
"""

import hashlib
from importlib import resources

import numpy as np
import torch
from jaxtyping import UInt8

from bsvi.data.dataset import Dataset, Split, SplitName, hold_out

LEVELS = 16
COUNTS = (1197, 200, 400)
_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def read_digits() -> tuple[UInt8[np.ndarray, "1797 8 8"], UInt8[np.ndarray, "1797"]]:
    """Return (images, labels) as shipped, after comparing them with their recorded SHA-256."""
    with (
        resources.as_file(resources.files("bsvi.data") / "digits.npz") as path,
        np.load(path, allow_pickle=False) as file,
    ):
        images, labels = file["images"], file["labels"]
    found = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    if found != _SHA256:
        raise ValueError(f"digits.npz: expected sha256 {_SHA256[:12]}..., found {found[:12]}...; install bsvi again")
    return images, labels


def load_digits() -> Dataset:
    """The digits that are part of the package, for a Bernoulli likelihood.

    Returns:
        A ``Dataset`` of 1,197 / 200 / 400 images, drawn with the published seed.

    Example:
        >>> digits = load_digits()
        >>> digits.shape, [len(split) for split in digits.splits]
        ((1, 8, 8), [1197, 200, 400])
    """
    images = torch.from_numpy(read_digits()[0][:, None])
    rest, test = hold_out(len(images), COUNTS[2], 0)
    kept, out = hold_out(len(rest), COUNTS[1], 1)

    def split(name: SplitName, ids: np.ndarray) -> Split:
        positions = torch.from_numpy(ids)
        return Split(name, images[positions], positions, LEVELS, binarise=True)

    return Dataset("digits", split("train", rest[kept]), split("valid", rest[out]), split("test", test), "bernoulli")
