"""One number per example, its mean with standard error and interval; and several such numbers by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtr, stdtrit

_RESAMPLES = 2000
_FEWEST = 8  # examples for a bootstrap: of fewer, resamples are too much alike
_AT_ONCE = 1 << 20  # numbers resampled at a time: the memory of a bootstrap does not grow with the data


@dataclass(frozen=True, eq=False)
class Score:
    """One number per example; ``mean`` over examples, its ``stderr``, and a 95% interval ``low``, ``high``.

    ``a - b`` is the score of the differences on the examples that both have: how two methods are compared.

    >>> score = Score(np.array([-3.0, -1.0, -2.0, -2.0]), np.arange(4))
    >>> score.mean, round(score.stderr, 3), score.low < score.mean < score.high
    (-2.0, 0.408, True)
    """

    per_example: Float64[np.ndarray, " examples"]
    ids: Int64[np.ndarray, " examples"]

    @cached_property
    def mean(self) -> float:
        return float(self.per_example.mean())

    @cached_property
    def stderr(self) -> float:
        """sd / sqrt(n); NaN for one example or for values that are not finite."""
        n = len(self.per_example)
        return float(self.per_example.std(ddof=1) / math.sqrt(n)) if n > 1 and self._finite else math.nan

    @property
    def low(self) -> float:
        return self._interval[0]

    @property
    def high(self) -> float:
        return self._interval[1]

    @cached_property
    def _finite(self) -> bool:
        return bool(np.isfinite(self.per_example).all())

    @cached_property
    def _interval(self) -> tuple[float, float]:
        """The 2.5% and 97.5% points of the mean of examples drawn with replacement, with a fixed seed; Student's below 8.

        Both points are moved out a little, as Student's t is wider than the normal and n - 1 smaller than n (Hesterberg, 2015):
        plain points hold the truth too rarely where there are few examples.
        """
        n = len(self.per_example)
        if n < 2 or not self._finite:
            return math.nan, math.nan
        if n < _FEWEST:
            half = -float(stdtrit(n - 1, 0.025)) * self.stderr
            return self.mean - half, self.mean + half
        rng, rows = np.random.default_rng(n), max(1, _AT_ONCE // n)
        sizes = [min(rows, _RESAMPLES - at) for at in range(0, _RESAMPLES, rows)]
        means = [self.per_example[rng.integers(0, n, (size, n))].mean(1) for size in sizes]
        outside = ndtr(stdtrit(n - 1, 0.025) * math.sqrt(n / (n - 1)))
        low, high = np.quantile(np.concatenate(means), [outside, 1 - outside])
        return float(low), float(high)

    def summary(self) -> dict[str, float | None]:
        """mean, stderr, low and high; None, JSON's null, for what is not finite."""
        return {name: _json_number(getattr(self, name)) for name in ("mean", "stderr", "low", "high")}

    def __sub__(self, other: "Score") -> "Score":
        ids, mine, theirs = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        if not len(ids):
            raise ValueError("the two scores have no example in common, so there are no pairs to compare")
        return Score(self.per_example[mine] - other.per_example[theirs], ids)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.stderr:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, eq=False, kw_only=True)
class PerExample:
    """Numbers per example by their names, and what to know of them: every estimator returns one, with properties of its own.

    ids       the examples, in order
    columns   every number per example by its name; ``result["elbo"]`` is one of them as a ``Score``
    warnings  one line each: what should not be trusted, and what to try
    seconds   the time it took, that of earlier runs into the same store included
    """

    ids: Int64[np.ndarray, " examples"]
    columns: Mapping[str, Float64[np.ndarray, " examples"]]
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    def __getitem__(self, name: str) -> Score:
        if name not in self.columns:
            raise KeyError(f"no score {name!r}; there are {', '.join(self.columns)}")
        return Score(self.columns[name], self.ids)

    @property
    def seconds_per_example(self) -> float:
        return self.seconds / len(self.ids)


def column(name: str, about: str = "") -> cached_property[Score]:
    """The attribute of a result that is its column of this name, as a ``Score``; ``about`` is its docstring.

    >>> class Made(PerExample):
    ...     elbo = column("elbo")
    >>> Made(ids=np.arange(2), columns={"elbo": np.array([-3.0, -1.0])}).elbo.mean
    -2.0
    """

    def read(result: PerExample) -> Score:
        return result[name]

    read.__doc__ = about or None
    return cached_property(read)


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
