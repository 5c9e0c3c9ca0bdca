"""Can a number be trusted? Effective sample size, Pareto k-hat, and bounds that still rise; all in bounded memory."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bsvi.bounds import extend

HIGH_KHAT = 0.7  # Vehtari et al. (2024): above it the error of an importance estimate no longer falls at a useful rate
_TAIL_LIMIT = 1000
_BLOCK = 64  # rows that wait before they are added up: one larger sum is cheaper than many small ones


class Tally:
    """Everything that evaluation keeps of ``draws`` weights per example, whatever their number: four sums and a tail.

    ``add`` takes the rows in pieces of any size. At each count of ``marks``, and at the end, ``log_mean`` has
    ln (1/n) sum w of the first n rows: IWAE-n for independent draws, BSVI for the steps of SVI.

    >>> tally = Tally(3, marks=(2,))
    >>> tally.add(torch.tensor([[0.0], [2.0], [1.0]]))
    >>> {n: round(value.item(), 4) for n, value in tally.log_mean.items()}, round(tally.ess().item(), 3)
    ({2: 1.4338, 3: 1.309}, 1.959)
    """

    def __init__(self, draws: int, marks: tuple[int, ...] = ()) -> None:
        self.draws, self.marks, self.count = draws, {*marks, draws}, 0
        self.log_mean: dict[int, Tensor] = {}
        self.waiting: list[Tensor] = []
        self.tail = tail_size(draws)

    def add(self, log_w: Float[Tensor, "rows batch"]) -> None:
        """Further rows; a weight that is not finite counts as zero and keeps its share, as in the bound."""
        while len(log_w):
            stop = min((mark for mark in self.marks if mark > self.count), default=0)
            if not stop:
                raise ValueError(f"Tally was made for {self.draws} weights per example and got more")
            piece, log_w = log_w[: stop - self.count], log_w[stop - self.count :]
            self.waiting.append(piece)
            self.count += len(piece)
            if self.count == stop or sum(map(len, self.waiting)) >= _BLOCK:
                self._sum()
            if self.count == stop:
                self.log_mean[stop] = self.total - math.log(stop)

    def _sum(self) -> None:
        rows = torch.cat(self.waiting).double()
        self.waiting.clear()
        bad = ~torch.isfinite(rows)
        rows = rows.masked_fill(bad, -math.inf)
        if not hasattr(self, "total"):
            nothing = rows.new_full(rows.shape[1:], -math.inf)
            self.total, self.squares, self.top = nothing, nothing, rows[:0]
            self.logs = self.nonfinite = rows.new_zeros(rows.shape[1:])
        one = rows.new_zeros(len(rows))
        self.total = extend(self.total, rows, one)
        self.squares = extend(self.squares, 2 * rows, one)
        self.logs = self.logs + rows.sum(0)
        self.nonfinite = self.nonfinite + bad.sum(0)
        top = torch.cat([self.top, rows])
        self.top = top.topk(min(self.tail + 1, len(top)), dim=0).values

    def mean_log(self) -> Float[Tensor, " batch"]:
        """The average of ln w: with independent draws of one q, its ELBO."""
        return self.logs / self.count

    def ess(self) -> Float[Tensor, " batch"]:
        """(sum w)^2 / sum w^2, how many equal weights the estimate is worth: between 1 and ``draws``."""
        return (2 * self.total - self.squares).exp().nan_to_num(0.0)

    def khat(self) -> Float[Tensor, " batch"]:
        """Pareto k-hat of the weights' tail; see ``pareto_khat``."""
        return fit_tail(self.top)


def tail_size(draws: int) -> int:
    """How many of the largest of ``draws`` weights count as their tail (Vehtari et al., 2024), at most 1,000."""
    return min(draws // 5, math.ceil(3 * math.sqrt(draws)), _TAIL_LIMIT)


def pareto_khat(log_w: Float[Tensor, "draws batch"]) -> Float[Tensor, " batch"]:
    """k-hat of each example: the shape of the generalised Pareto law that fits its largest weights.

    Moments of the weights of order 1 / k and above do not exist. Below 0.5 the variance is finite, above 0.7 an estimate
    should not be trusted. NaN with fewer than 25 weights; 0 where the largest weights are all equal.

    >>> log_w = -0.5 * torch.rand(1000, 1).log()  # the tail of w is Pareto with k = 0.5
    >>> 0.2 < pareto_khat(log_w).item() < 0.8
    True
    """
    return fit_tail(log_w.double().topk(min(tail_size(len(log_w)) + 1, len(log_w)), dim=0).values)


def fit_tail(top: Float[Tensor, "top batch"]) -> Float[Tensor, " batch"]:
    """k-hat from the largest log-weights in falling order, the last of which is the threshold.

    The quasi-Bayesian fit of Zhang and Stephens (2009) with the weak prior towards 0.5 of Vehtari et al. (2024).
    """
    n = len(top) - 1
    if n < 5:
        return top.new_full(top.shape[1:], math.nan)
    w = (top - top[:1]).exp()  # relative to the largest: the shape does not depend on the scale
    x = (w[:-1] - w[-1:]).flip(0)  # exceedances in rising order
    flat = ~(x[-1] > 1e-12)
    x = torch.where(flat, torch.linspace(0.1, 1.0, n, dtype=x.dtype, device=x.device)[:, None], x)
    points = 30 + math.isqrt(n)
    grid = torch.arange(1, points + 1, dtype=x.dtype, device=x.device)
    quartile = x[int(n / 4 + 0.5) - 1].clamp_min(1e-300)
    spread = 1 - (points / (grid - 0.5)).sqrt()
    theta = 1 / x[-1] + spread[:, None] / (3 * quartile)  # (points, batch)
    shape = torch.stack([torch.log1p(-row * x).mean(0) for row in theta])  # the likelihood's best k for each theta
    log_lik = n * ((-theta / shape).log() - shape - 1)
    posterior = torch.softmax(log_lik.nan_to_num(-math.inf), dim=0)
    k = torch.log1p(-(posterior * theta).sum(0) * x).mean(0)
    k = (n * k + 10 * 0.5) / (n + 10)
    return torch.where(flat, 0.0, k)
