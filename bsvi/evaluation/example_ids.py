"""Which examples a batch holds: their ids, and a checksum of each, by which a store knows them again."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from bsvi.examples import Nested, Pick, check_axis, count, split, tensors, unpack
from bsvi.refinement import PAPER_BATCH

Batches = Iterable[Any] | Tensor  # batches, or all examples at once as a tensor, a dict or a named tuple


def check_batches(batches: object) -> None:
    """Raise, with what to do, on batches that cannot be gone through."""
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a tensor or an iterable of batches, got {type(batches).__name__}")


def name_examples(
    batches: Batches, pick: Pick | None = None, name: Pick | None = None
) -> Iterator[tuple[Nested, Int64[Tensor, " batch"]]]:
    """Each batch with ids on the CPU; positions where the batches bring none."""
    position = 0
    if isinstance(batches, Tensor | Mapping) or hasattr(batches, "_fields"):  # all examples at once
        check_axis(batches)
        batches = split(batches, PAPER_BATCH)
    for batch in batches:
        x, ids = unpack(batch, pick, name)
        check_axis(x)
        examples = count(x)
        yield x, torch.arange(position, position + examples) if ids is None else _read_ids(ids, examples)
        position += examples


def _read_ids(given: Any, count: int) -> Int64[Tensor, " batch"]:
    """The second part of a batch as ids."""
    try:
        ids = torch.as_tensor(given).cpu()
    except (TypeError, ValueError, RuntimeError):
        ids = None
    if ids is None or ids.shape != (count,) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        kind = type(given).__name__ if ids is None else f"{ids.dtype} {tuple(ids.shape)}"
        raise ValueError(
            f"ids are {count} whole numbers, one per example, got {kind} "
            f"({_show_first(given)}); number the examples, or give batches of x alone"
        )
    if ids.dtype == torch.uint64 and (ids.view(torch.int64) < 0).any():
        raise ValueError(
            f"ids must be below 2**63, got uint64 ({_show_first(given)}); number the examples from 0, or give batches of x alone"
        )
    return ids.long()


def _show_first(given: Any) -> str:
    """The first few of what a batch has in place of ids, as the user would know them."""
    values = given.tolist() if isinstance(given, Tensor | np.ndarray) else given
    values = list(values)[:3] if isinstance(values, Iterable) and not isinstance(values, str | bytes) else [values]
    text = ", ".join(map(repr, values))
    return text if len(text) <= 60 else text[:57] + "..."


def check_new(names: list[int], seen: set[int]) -> None:
    for name in names:
        if name in seen:
            raise ValueError(
                f"example id {name} comes twice, and labels are no ids; give unique ids, or batches of x alone: leave out ids="
            )
        seen.add(name)


def find_checksums(x: Nested) -> list[int]:
    crc = [0] * count(x)
    for name, tensor in tensors(x):
        rows = tensor.detach().cpu().contiguous().reshape(len(tensor), -1)  # as bytes: numpy does not know bfloat16
        start = 0 if name == "x" else zlib.crc32(f"{name} {tuple(tensor.shape[1:])}".encode())
        crc = [
            zlib.crc32(row.view(torch.uint8).numpy().tobytes(), start ^ old) for row, old in zip(rows, crc, strict=True)
        ]
    return crc
