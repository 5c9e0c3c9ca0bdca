"""Whole numbers that a user gives to an estimator, checked in one place."""

from typing import Any, SupportsIndex

from bsvi.refinement import SVI, whole


def check_at_least_1(name: str, value: SupportsIndex) -> int:
    """The value as an int of at least 1; ValueError with its name otherwise."""
    if (number := whole(name, value)) < 1:
        raise ValueError(f"{name} must be at least 1, a whole number, got {value!r}")
    return number


def check_counts(seed: SupportsIndex, chunk: SupportsIndex | None = None, **counts: SupportsIndex) -> tuple[int, ...]:
    """``seed`` as an int, and after it each of ``counts``, in the order given, as an int of at least 1.

    ``chunk`` may be None, and is checked only: no number depends on it.

    >>> check_counts(0, None, chains=16, temperatures=500)
    (0, 16, 500)
    """
    if chunk is not None:
        check_at_least_1("chunk", chunk)
    return (whole("seed", seed), *(check_at_least_1(name, value) for name, value in counts.items()))


def check_svi(name: str, value: Any) -> None:
    """TypeError with its name unless it is None or an ``SVI``."""
    if not (value is None or isinstance(value, SVI)):
        raise TypeError(
            f"{name} must be a bsvi.SVI, got {type(value).__name__}; give {name}=bsvi.SVI(steps=100, lr=0.1)"
        )
