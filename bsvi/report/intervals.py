"""Confidence intervals for means over seeds and examples, which are crossed: every seed sees every example."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats


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
        """Whether the interval covers the variation between seeds: with one seed nobody knows it."""
        return self.seeds > 1


def over_seeds(values: list[float], level: float = 0.95) -> Interval:
    """Student's interval for the mean over seeds; a single seed has none.

    >>> over_seeds([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.48..., high=4.48..., seeds=3, examples=0)
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan, len(values))
    half = float(stats.t.ppf(0.5 + level / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half, len(values))


def crossed(*parts: Float[np.ndarray, "seeds _"], level: float = 0.95) -> Interval:
    """The interval for the sum of the parts' means; a part holds one value per seed and example.

    A difference d[s, e] between two methods varies with the seed (one training run is lucky) and with the example (one
    image suits a method), so values that share a seed or an example are dependent: the standard error over all seeds
    times examples is far too small, the one over examples ignores the luck of training, the one over seeds alone is
    right only for these very images. In the two-way random-effects model d = mean + seed + example + rest,

        Var(mean of d) = Var(seed means) / S + Var(example means) / E - Var(rest) / (S E),

    each variance estimated by its mean square; Satterthwaite's degrees of freedom carry over that S is small. With
    several parts (a training and a test set, signs included) the seeds are the same and the examples differ. With one
    seed the seeds' variance is unknown: the interval covers examples alone (`knows_seeds` is False).

    >>> import numpy as np
    >>> crossed(np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]])).seeds
    2
    """
    seeds = parts[0].shape[0]
    mean = float(sum(part.mean() for part in parts))
    terms: list[tuple[float, float, int]] = []  # sign, variance of the mean, degrees of freedom
    if seeds > 1:
        means = np.sum([part.mean(axis=1) for part in parts], axis=0)
        terms.append((1.0, float(means.var(ddof=1)) / seeds, seeds - 1))
    for part in parts:
        examples = part.shape[1]
        if examples < 2:
            continue
        terms.append((1.0, float(part.mean(axis=0).var(ddof=1)) / examples, examples - 1))
        if seeds > 1:
            rest = part - part.mean(axis=1, keepdims=True) - part.mean(axis=0, keepdims=True) + part.mean()
            free = (seeds - 1) * (examples - 1)
            terms.append((-1.0, float((rest**2).sum()) / free / (seeds * examples), free))
    floor = max((term[1] for term in terms if term[0] > 0), default=math.nan)
    variance = max(sum(sign * value for sign, value, _ in terms), floor) if terms else math.nan
    spread = sum(value**2 / free for _, value, free in terms)
    free_all = variance**2 / spread if spread > 0 else math.inf
    half = float(stats.t.ppf(0.5 + level / 2, free_all)) * math.sqrt(variance) if math.isfinite(variance) else math.nan
    return Interval(mean, mean - half, mean + half, seeds, sum(part.shape[1] for part in parts))
