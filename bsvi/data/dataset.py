"""What a loader returns: three splits of grey images, compact in memory, with the hash of what is used."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from bsvi.data.counter import shuffle_positions
from bsvi.tables.likelihoods import LIKELIHOODS

SplitName = Literal["train", "valid", "test"]

# The published seed of every split that we draw ourselves: which images are held out for validation.
SPLIT_SEED = 2019


@dataclass(frozen=True, eq=False)
class Split:
    """Images of one split: `images / levels` are grey values in [0, 1]; `ids` number the examples in their source."""

    name: SplitName
    images: UInt8[Tensor, "n 1 height width"] | Float32[Tensor, "n 1 height width"]
    ids: Int64[Tensor, " n"]
    levels: int  # 255 for 8-bit grey values, 16 for the digits, 1 for grey values kept as float32
    binarise: bool  # True: a visit draws 0/1 pixels with the grey values as means

    def __len__(self) -> int:
        return len(self.ids)

    def grey(self, positions: Int64[Tensor, " batch"]) -> Float32[Tensor, "batch 1 height width"]:
        """Return the grey values of the examples at these positions: `j / levels`, rounded once."""
        return self.images[positions].to(torch.float32).div_(self.levels)

    def take(self, count: int) -> "Split":
        """Return the first `count` examples; they keep their ids, and with them their noise."""
        return replace(self, images=self.images[:count], ids=self.ids[:count])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set in three splits, the likelihood that fits it, and the SHA-256 of the arrays in use."""

    name: str
    train: Split
    valid: Split
    test: Split
    likelihood: str  # a row of the table of likelihoods
    place: str = ""  # of your own images: where they were found, as an absolute path
    sha256: str = field(init=False)  # over the arrays after loading and splitting, before any binarisation

    def __post_init__(self) -> None:
        LIKELIHOODS.find(self.likelihood)
        object.__setattr__(self, "sha256", _sha256(self))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of one image: (1, height, width)."""
        return (1, self.train.images.shape[2], self.train.images.shape[3])

    @property
    def splits(self) -> tuple[Split, Split, Split]:
        """Return train, valid, test."""
        return (self.train, self.valid, self.test)


def hold_out(n: int, count: int, *words: int) -> tuple[Int64[np.ndarray, " rest"], Int64[np.ndarray, " count"]]:
    """Return (kept, held out) positions of n examples, both ascending; the choice is a function of the seed alone.

    >>> kept, out = hold_out(10, 3)
    >>> len(kept), len(out), sorted([*kept.tolist(), *out.tolist()]) == list(range(10))
    (7, 3, True)
    """
    if not 0 < count < n:
        raise ValueError(f"holding out {count} of {n} images leaves an empty split; hold out between 1 and {n - 1}")
    positions = shuffle_positions(np.arange(n, dtype=np.int64), SPLIT_SEED, *words)
    return np.sort(positions[count:]), np.sort(positions[:count])


def _sha256(dataset: Dataset) -> str:
    digest = hashlib.sha256(dataset.likelihood.encode())
    for split in dataset.splits:
        images, ids = split.images.numpy(), split.ids.numpy()
        head = f"|{split.name}|{images.dtype.newbyteorder('<').str}|{images.shape}|{split.levels}|{split.binarise}|"
        digest.update(head.encode())
        for array in (images, ids):
            digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()
