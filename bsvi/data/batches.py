"""Batches as pure functions of (seed, epoch, example id): the same for any number of workers, any shard, any restart.

Training visits are one endless stream: visit v belongs to epoch v // n, and within an epoch the order of examples and
each one's noise are functions of (seed, epoch, id). Step s takes the visits s * batch_size, ..., so the batch size only
changes the grouping, no example is ever dropped, a batch may straddle two epochs, and step s costs the same wherever
one starts. Validation and test are read in file order, once each, binarised with one published seed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt64
from torch import Tensor

from bsvi.data.counter import draw_uniforms, make_example_keys, shuffle_positions
from bsvi.data.dataset import Split

# The published seed with which validation and test images are binarised, the same for all methods and all runs.
EVALUATION_SEED = 500

_SPLIT_WORD = {"train": 0, "valid": 1, "test": 2}
_ORDER, _NOISE = 0, 1


class Batch(NamedTuple):
    """Images as the likelihood wants them (0/1, or grey on the grid j / levels), and the examples' ids."""

    x: Float32[Tensor, "batch 1 height width"]
    ids: Int64[Tensor, " batch"]


def training_batches(
    split: Split,
    *,
    seed: int,
    batch_size: int,
    start_step: int = 0,
    steps: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str | None = None,
) -> Iterator[Batch]:
    """The training batches of a split, each a function of the seed and its step.

    Args:
        split: of a data set.
        seed: of the order and of the binarisation.
        batch_size: examples of a batch, of all processes together.
        start_step: the step of the first batch: a run goes on there.
        steps: how many batches; endless if None.
        rank: which of ``world_size`` equal parts of each batch this process gets; together they are the batch of one process.
        device: where the batches go.

    Returns:
        Batches of x and ids.

    Example:
        >>> from bsvi.data import load_digits
        >>> train = load_digits().train
        >>> first, second = training_batches(train, seed=1, batch_size=50, steps=2)
        >>> resumed = next(training_batches(train, seed=1, batch_size=50, start_step=1))
        >>> tuple(second.x.shape), bool((second.x == resumed.x).all())
        ((50, 1, 8, 8), True)
    """
    _check(batch_size, rank, world_size)
    if len(split) == 0:
        raise ValueError(f"the {split.name} split is empty; there is nothing to draw batches from")
    if batch_size % world_size:
        raise ValueError(f"batch_size {batch_size} does not divide among {world_size} processes; take a multiple")
    if start_step < 0:
        raise ValueError(f"start_step must be at least 0, got {start_step}")
    part = batch_size // world_size
    return _generate(split, seed, range(rank * part, (rank + 1) * part), batch_size, start_step, steps, device=device)


def evaluation_batches(
    split: Split, *, batch_size: int, rank: int = 0, world_size: int = 1, device: torch.device | str | None = None
) -> Iterator[Batch]:
    """Every example of the split exactly once, in file order.

    Args:
        split: of a data set.
        batch_size: examples of a batch; only the last one may be smaller.
        rank: which of ``world_size`` processes this is: each gets a contiguous part of the split.
        device: where the batches go.

    Returns:
        Batches of x and ids.

    Example:
        >>> from bsvi.data import load_digits
        >>> [len(ids) for x, ids in evaluation_batches(load_digits().valid, batch_size=90)]
        [90, 90, 20]
    """
    _check(batch_size, rank, world_size)
    n = len(split)
    first, last = rank * n // world_size, (rank + 1) * n // world_size
    return (
        visit(split, np.arange(at, min(at + batch_size, last)), EVALUATION_SEED, 0, device)
        for at in range(first, last, batch_size)
    )


def visit(
    split: Split,
    positions: Int64[np.ndarray, " batch"],
    seed: int,
    epoch: int,
    device: torch.device | str | None = None,
) -> Batch:
    """Return the examples at these positions as one epoch sees them: binarised with their own noise, or grey."""
    index = torch.from_numpy(positions)
    ids = split.ids[index]
    x = split.grey(index)
    if split.binarise:
        x = _binarise(x, make_example_keys(ids.numpy(), seed, _NOISE, _SPLIT_WORD[split.name], epoch))
    if device is not None:
        x, ids = x.to(device, non_blocking=True), ids.to(device, non_blocking=True)
    return Batch(x, ids)


def binarise_once(split: Split) -> Split:
    """Return the split with 0/1 pixels drawn once for all, with the published seed: static binarisation."""
    parts = np.array_split(np.arange(len(split)), max(1, len(split) // 1000))
    drawn = torch.cat([visit(split, part, EVALUATION_SEED, 0).x.to(torch.uint8) for part in parts])
    return replace(split, images=drawn, levels=1, binarise=False)


def _generate(
    split: Split,
    seed: int,
    part: range,
    batch_size: int,
    start_step: int,
    steps: int | None,
    *,
    device: torch.device | str | None,
) -> Iterator[Batch]:
    n, step, known_epoch, known_order = len(split), start_step, -1, np.empty(0, np.int64)
    while steps is None or step < start_step + steps:
        pieces = []
        first, last = step * batch_size + part.start, step * batch_size + part.stop
        for epoch in range(first // n, (last - 1) // n + 1):
            if epoch != known_epoch:
                known_order = shuffle_positions(split.ids.numpy(), seed, _ORDER, _SPLIT_WORD[split.name], epoch)
                known_epoch = epoch
            start = epoch * n
            positions = known_order[max(first - start, 0) : min(last - start, n)]
            pieces.append(visit(split, positions, seed, epoch, device))
        step += 1
        if len(pieces) == 1:
            yield pieces[0]
        else:
            yield Batch(torch.cat([piece.x for piece in pieces]), torch.cat([piece.ids for piece in pieces]))


def _binarise(
    grey: Float32[Tensor, "batch 1 height width"], keys: UInt64[np.ndarray, " batch"]
) -> Float32[Tensor, "batch 1 height width"]:
    # u < p with u in [0, 1): a pixel of grey value 0 is never drawn and one of grey value 1 always is
    flat = grey.numpy().reshape(len(keys), -1)
    drawn = (draw_uniforms(keys, flat.shape[1]) < flat).astype(np.float32)
    return torch.from_numpy(drawn).reshape(grey.shape)


def _check(batch_size: int, rank: int, world_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..world_size - 1, got rank {rank} with world_size {world_size}")
