"""Batches as a stream that can be taken up at any step."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

# a function of the step to start at, or batches to be cycled
BatchStream = Callable[[int], Iterator[Any]] | Iterable[Any]


def start_at(batches: BatchStream, step: int) -> Iterator[Any]:
    """The endless stream of batches from this step on; of an iterable the first ones are read and left.

    >>> stream = start_at(["a", "b", "c"], 4)
    >>> next(stream), next(stream), next(stream)
    ('b', 'c', 'a')
    """
    if callable(batches):
        return iter(batches(step))
    stream = cycle(batches)
    for _ in range(step):
        next(stream)
    return stream


def cycle(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches over and over."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError(
                "the batches can be read only once, or there are none; give a list, a loader, or a function of the step"
            )


def take_next(stream: Iterator[Any], step: int) -> Any:
    """The next batch."""
    try:
        return next(stream)
    except StopIteration:
        raise ValueError(f"the batches ended after {step} steps; give an endless stream, or set steps={step}") from None
