"""What theta learns from: all draws, the last one, or a few resampled ones (Algorithm 1, l.13-16, and section 5).

The loss reaches theta by one of two ways. Where the decoder's graphs were kept (``Graphs``), the bound itself leads there. Where
none was, ``ThetaRule.term`` is added: a scalar of value zero that carries the same gradient, sum_i r_i grad ln p(x, z_i), or a
resampled estimate of it. So ``loss.backward()`` is all that a training loop needs.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bsvi.bounds import Bound, derivative
from bsvi.draws import log_likelihood, log_prior
from bsvi.examples import Nested, is_at_hand, repeat, take
from bsvi.model import Model
from bsvi.parameters import find_reached_parameters
from bsvi.trajectory import Trajectory


class ThetaRule:
    """``attach``: how many of the last proposals keep their decoder graph, by which the bound reaches theta; None: all.

    ``budget``: bytes that these graphs may take; beyond it none is kept.
    """

    attach: ClassVar[int | None] = 0
    budget: float = math.inf

    def term(
        self, model: Model, x: Nested, beta: float, trajectory: Trajectory, bound: Bound, log_pi: Tensor
    ) -> tuple[Tensor | float, int]:
        """What the loss needs beside the bound to reach theta, zero in value, and the decoder's passes that this took."""
        kept = trajectory.log_w.requires_grad if trajectory.kept is None else trajectory.kept
        if kept:  # the bound leads to theta by itself
            return 0.0, 0
        torch.clear_autocast_cache()  # its copies of the parameters may be without a graph
        term = self(model, x, beta, trajectory, derivative(bound, trajectory.log_w, log_pi))
        rows = len(trajectory.log_w)
        return term, self.decoder_calls(rows) or self.count_taught(rows, trajectory.samples)

    def __call__(self, model: Model, x: Nested, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        """Theta's gradient as a term of value zero; called where no graph was kept: by default it is recomputed.

        ``r`` (draws, batch) is the bound's derivative with respect to ln w_i: the responsibilities, for giwae.
        """
        rows = self.count_taught(len(r), trajectory.samples)
        return recompute_term(model, x, beta, trajectory.z[-rows:], r[-rows:])

    def count_taught(self, rows: int, samples: int) -> int:
        """Of how many of the last of ``rows`` draws the gradient is recomputed, at one pass of the decoder each."""
        return rows if self.attach is None else min(rows, self.attach * samples)

    def decoder_calls(self, rows: int) -> int:
        """Passes of the decoder per example that this rule adds to those of ``rows`` draws, if graphs are kept as asked."""
        return 0

    def change(self, resampled: int = 1, recompute: bool | None = None) -> "ThetaRule":
        """The rule with what ``bsvi.objective`` was asked for, as far as it is its own."""
        return self


@dataclass(frozen=True)
class AllDraws(ThetaRule):
    """The bound's own gradient through the k + 1 decoder graphs, kept until ``backward`` (Alg. 1, l.16).

    Where they would take more than ``budget`` bytes (measured at the first proposal), the gradient is ``Recomputed``: the same
    gradient in about the same time and a fraction of the memory.
    """

    budget: float = 2.0**30
    attach: ClassVar[int | None] = None

    def change(self, resampled: int = 1, recompute: bool | None = None) -> ThetaRule:
        return self if recompute is None else Recomputed() if recompute else AllDraws(budget=math.inf)


@dataclass(frozen=True)
class LastDraw(ThetaRule):
    """The gradient of ln w_k alone; only the last draw's decoder graph is kept (Alg. 1, l.14)."""

    attach: ClassVar[int | None] = 1


@dataclass(frozen=True)
class Resampled(ThetaRule):
    """The average gradient of ln p(x, z) at ``draws`` draws of q_SIR: one decoder graph whatever k is (section 5)."""

    draws: int = 1

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"resampling needs at least 1 draw, got {self.draws}; the paper uses 1")

    def __call__(self, model: Model, x: Nested, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        x, z, chances = with_weight(x, trajectory.z, r)
        z = resample(z, chances, self.draws)
        log_joint = log_p(model, repeat(x, self.draws), z.flatten(0, 1), beta).view(self.draws, -1)
        return (carry(log_joint) * r.sum(0)).mean()

    def decoder_calls(self, rows: int) -> int:
        return self.draws

    def change(self, resampled: int = 1, recompute: bool | None = None) -> ThetaRule:
        return Resampled(resampled)


@dataclass(frozen=True)
class Recomputed(ThetaRule):
    """The same gradient as ``AllDraws``, sum_i r_i grad ln p(x, z_i) (Lemma 1), from ``chunk`` draws at a time.

    Only one chunk's decoder graph is alive, so memory does not grow with k; the decoder runs once more per draw.
    """

    chunk: int = 1

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"recomputing needs chunks of at least 1 draw, got {self.chunk}")

    def __call__(self, model: Model, x: Nested, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        return recompute_term(model, x, beta, trajectory.z, r, self.chunk)

    def decoder_calls(self, rows: int) -> int:
        return rows


def recompute_term(model: Model, x: Nested, beta: float, z: Tensor, r: Tensor, chunk: int = 1) -> Tensor | float:
    """Zero with the gradient sum_i r_i grad ln p(x, z_i), averaged over the batch; one chunk's graph is alive at a time."""
    x, z, _ = with_weight(x, z, r)
    total: dict[int, tuple[Tensor, Tensor]] = {}  # a parameter and its gradient
    for some, weight in zip(z.split(chunk), r.split(chunk), strict=True):
        value = (weight * log_p(model, repeat(x, len(some)), some.flatten(0, 1), beta).view(weight.shape)).sum()
        theta = find_reached_parameters(model, value)
        if not theta:  # a decoder without parameters to train
            return 0.0
        for p, g in zip(theta, torch.autograd.grad(value, theta), strict=True):
            total[id(p)] = (p, g + total[id(p)][1] if id(p) in total else g)
    return sum(((p - p.detach()) * (g / r.shape[1])).sum().double() for p, g in total.values())


def with_weight(x: Nested, z: Tensor, r: Tensor) -> tuple[Nested, Tensor, Tensor]:
    """x, z and r in which every draw with r = 0 is replaced by one with weight: in backward it would be 0 * inf.

    Its gradient is still multiplied by its own r, so nothing is counted that was not. An example without any weight is
    replaced whole; r, with which it is resampled, then prefers nothing. On a GPU this is done without asking whether there is
    one, as that would wait for the device.
    """
    zero, readable = r == 0, is_at_hand(r)
    if readable and not zero.any():
        return x, z, r
    size = r.abs()
    alive, batch = size.amax(0) > 0, torch.arange(r.shape[1], device=r.device)
    example = torch.where(alive, batch, alive.long().argmax())
    best = z[size.argmax(0)[example], example]
    z = torch.where(zero.view(*zero.shape, *(1,) * (z.ndim - 2)), best, z)
    return (x if readable and alive.all() else take(x, example)), z, torch.where(alive, r, 1.0)


def resample(z: Tensor, r: Tensor, draws: int) -> Tensor:
    """``draws`` rows (draws, batch, ...) of z, row i of an example with probability r_i: samples of q_SIR (Lemma 1)."""
    index = torch.multinomial(r.T, draws, replacement=True).T
    return z[index, torch.arange(z.shape[1], device=z.device)]


def log_p(model: Model, x: Nested, z: Tensor, beta: float) -> Tensor:
    """ln p(x|z) + beta ln p(z), theta's part of ln w, in float64."""
    return log_likelihood(model, x, z) + beta * log_prior(model, z, x)


def carry(value: Tensor) -> Tensor:
    """Zero with the gradient of ``value``; a value that is not finite carries nothing."""
    return torch.where(torch.isfinite(value), value - value.detach(), 0.0)
