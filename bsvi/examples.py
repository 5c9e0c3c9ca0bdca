"""x: a batch of examples, a tensor or any nesting of dicts, tuples and lists of tensors that share their first axis.

A nesting carries what belongs to an example beside its pixels: covariates, labels, masks, lengths. Entries may be None.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Nested = Any  # a Tensor, or dicts, tuples, lists and named tuples of Nested
Pick = Callable[[Any], Any]  # what of a loader's batch is x, or its ids


def each(x: Nested, function: Callable[[Tensor], Any]) -> Nested:
    """The same nesting with ``function`` of every tensor in place of it.

    >>> each({"a": torch.ones(3), "b": (torch.ones(3, 2), None)}, lambda tensor: tensor.ndim)
    {'a': 1, 'b': (2, None)}
    """
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, Mapping):
        return {name: each(part, function) for name, part in x.items()}
    if isinstance(x, tuple | list):
        parts = [each(part, function) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def tensors(x: Nested, name: str = "x") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name, such as ``x['mask']``; TypeError for what is neither a tensor nor a nesting of them."""
    if isinstance(x, Tensor):
        yield name, x
    elif isinstance(x, Mapping):
        for key, part in x.items():
            yield from tensors(part, f"{name}[{key!r}]")
    elif isinstance(x, tuple | list):
        for i, part in enumerate(x):
            yield from tensors(part, f"{name}[{i}]")
    elif x is not None:
        raise TypeError(
            f"{name} must be a tensor, or dicts, tuples and lists of tensors, got {type(x).__name__}; give tensors, or say "
            "with batch= what of a batch is x, such as batch=lambda b: b[0]"
        )


def first(x: Nested) -> Tensor:
    """The first tensor: the batch's size and device are its own."""
    if isinstance(x, Tensor):
        return x
    for _, tensor in tensors(x):
        return tensor
    raise ValueError(f"x must hold at least one tensor, got an empty {type(x).__name__}; give a batch")


def count(x: Nested) -> int:
    """How many examples there are."""
    return first(x).shape[0]


def take(x: Nested, rows: Any) -> Nested:
    """Some of the examples, by a slice or a tensor of their places."""
    return each(x, lambda tensor: tensor[rows.to(tensor.device) if isinstance(rows, Tensor) else rows])


def repeat(x: Nested, samples: int) -> Nested:
    """The batch ``samples`` times over along its first axis."""
    if samples == 1:
        return x
    return each(x, lambda tensor: tensor.expand(samples, *tensor.shape).flatten(0, 1))


def check_axis(x: Nested) -> None:
    """Raise, with what to do, unless all tensors have the same examples along their first axis, and at least one."""
    if isinstance(x, Tensor) and x.ndim and x.shape[0]:
        return
    (name, tensor), *others = list(tensors(x)) or [("x", first(x))]
    if tensor.ndim < 1 or tensor.shape[0] == 0:
        raise ValueError(
            f"{name} must be a tensor (batch, ...) with at least one example, got {tuple(tensor.shape)}; give a batch"
        )
    for other, part in others:
        if part.ndim < 1 or part.shape[0] != tensor.shape[0]:
            raise ValueError(
                f"all parts of x must have the same examples along their first axis: {name} has {tensor.shape[0]}, {other} "
                f"is {tuple(part.shape)}; what is the same for all examples belongs into the model"
            )


def spoilt(x: Nested, missing: bool = False) -> Tensor | None:
    """Which examples hold NaN or infinity, (batch,); None if none does. With ``missing`` NaN is a missing value."""
    bad: Tensor | None = None
    for _, tensor in tensors(x):
        fine = torch.isfinite(tensor) | torch.isnan(tensor) if missing else torch.isfinite(tensor)
        if not fine.all():
            rows = (~fine).reshape(len(tensor), -1).any(1)
            bad = rows if bad is None else bad | rows.to(bad.device)
    return bad


def is_at_hand(tensor: Tensor) -> bool:
    """Whether its numbers can be read without waiting: a GPU would first have to finish all that was asked of it.

    >>> is_at_hand(torch.ones(2)), is_at_hand(torch.ones(2, device="meta"))
    (True, False)
    """
    return tensor.device.type == "cpu"


def split(x: Nested, size: int) -> Iterator[Nested]:
    """Pieces of ``size`` examples."""
    for at in range(0, count(x), size):
        yield take(x, slice(at, at + size))


def unpack(batch: Any, pick: Pick | None = None, name: Pick | None = None) -> tuple[Nested, Any]:
    """x and its ids (None without) of what a loader gives.

    Args:
        batch: x itself, a list or tuple of x alone, or an object with ``.x`` and ``.ids``
        pick: the function that takes x out of any other batch
        name: the function that takes the ids out of it

    >>> unpack((torch.ones(2), torch.tensor([7, 9])), lambda b: b[0], lambda b: b[1])
    (tensor([1., 1.]), tensor([7, 9]))
    """
    for word, function in (("batch", pick), ("ids", name)):
        if function is not None and not callable(function):
            raise TypeError(
                f"{word}= must be a function of a loader's batch, such as lambda b: b[0], got {type(function).__name__}"
            )
    ids = None if name is None else name(batch)
    if pick is not None:
        return pick(batch), ids
    if hasattr(batch, "x") and hasattr(batch, "ids"):
        return batch.x, batch.ids if name is None else ids
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        if len(batch) != 1:
            raise TypeError(
                f"a batch is a {type(batch).__name__} of {len(batch)}, and which of them is x is not said; give "
                "batch=lambda b: b[0] for the first (and ids=lambda b: b[1] if the second are ids, not labels), or "
                "batch=lambda b: b if the model takes them all"
            )
        return batch[0], ids
    return batch, ids
