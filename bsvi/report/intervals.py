"""Confidence intervals for means over seeds and examples, which are crossed: every seed sees every example."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

FEWEST_SEEDS = 3  # with two, seeds that agree by luck look like seeds that always agree


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval, and what it was taken over; examples = 0 where only seeds were known."""

    mean: float
    low: float
    high: float
    seeds: int
    examples: int = 0

    @property
    def knows_seeds(self) -> bool:
        """Whether there are seeds enough to say how seeds differ: one says nothing, two say it by luck."""
        return self.seeds >= FEWEST_SEEDS


def interval_over_seeds(values: list[float], level: float = 0.95) -> Interval:
    """Student's interval for the mean over seeds; a single seed has none.

    >>> interval_over_seeds([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.48..., high=4.48..., seeds=3, examples=0)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, len(values))
    half = _student(level, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def crossed_interval(*parts: Float[np.ndarray, "seeds _"], level: float = 0.95) -> Interval:
    """The interval for the sum of the parts' means; a part holds one value per seed and example.

    A difference d[s, e] between two methods varies with the seed (one training run is lucky) and with the example (one
    image suits a method), so values that share a seed or an example are dependent: the standard error over all seeds
    times examples is far too small, the one over examples ignores the luck of training, the one over seeds alone is
    right only for these very images. In the two-way random-effects model d = mean + seed + example + rest,

        Var(mean of d) = Var(seed means) / S + (Var(example means) - Var(rest) / S) / E,

    the first part known to S - 1 degrees of freedom, the second to E - 1. Each keeps its own Student's t:

        half^2 = t(S - 1)^2 Var(seed means) / S + t(E - 1)^2 (Var(example means) - Var(rest) / S) / E

    One t for both (Satterthwaite's) believes seeds that agree by luck. With several parts (a training and a test set,
    signs included) the seeds are the same and the examples differ. With one seed the seeds' variance is unknown: the
    interval covers examples alone.

    >>> import numpy as np
    >>> crossed_interval(np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]])).seeds
    2
    """
    seeds = parts[0].shape[0]
    mean = float(sum(part.mean() for part in parts))
    squares: list[float] = []  # of the half width, one for each part of the variance
    if seeds > 1:
        means = np.sum([part.mean(axis=1) for part in parts], axis=0)
        squares.append(_student(level, seeds - 1) ** 2 * float(means.var(ddof=1)) / seeds)
    for part in parts:
        examples = part.shape[1]
        if examples < 2:
            continue
        variance = float(part.mean(axis=0).var(ddof=1))
        if seeds > 1:
            rest = part - part.mean(axis=1, keepdims=True) - part.mean(axis=0, keepdims=True) + part.mean()
            variance -= float((rest**2).sum()) / ((seeds - 1) * (examples - 1)) / seeds
        squares.append(_student(level, examples - 1) ** 2 * max(variance, 0.0) / examples)
    half = math.sqrt(sum(squares)) if squares else math.nan
    return Interval(mean, mean - half, mean + half, seeds, sum(part.shape[1] for part in parts))


def _student(level: float, free: int) -> float:
    return float(stdtrit(free, 0.5 + level / 2))
