"""What theta learns from: all draws, the last one, or a few resampled ones (Algorithm 1, l.13-16, and section 5).

A rule says how many proposals must keep their decoder graph (``attach``), and returns a scalar that is zero in value
and carries theta's gradient where none was kept, so that ``loss.backward()`` is all a training loop needs.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bsvi.model import Model, trainable
from bsvi.trajectory import Trajectory, repeat


class ThetaRule:
    """``attach``: how many of the last proposals keep their decoder graph, by which the bound reaches theta; None: all.

    ``budget``: bytes that these graphs may take; beyond it none is kept.
    """

    attach: ClassVar[int | None] = 0
    budget: float = math.inf

    def __call__(self, model: Model, x: Tensor, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        """Theta's gradient as a term of value zero; called where no graph was kept.

        ``r`` (draws, batch) is the bound's derivative with respect to ln w_i: the responsibilities, for giwae.
        """
        raise NotImplementedError

    def decoder_calls(self, rows: int) -> int:
        """Passes of the decoder per example that this rule adds to those of ``rows`` draws."""
        return 0


@dataclass(frozen=True)
class AllDraws(ThetaRule):
    """The bound's own gradient through the k + 1 decoder graphs, kept until ``backward`` (Alg. 1, l.16).

    Where they would take more than ``budget`` bytes (measured at the first proposal), the gradient is ``Recomputed``: the same
    gradient in about the same time and a fraction of the memory.
    """

    budget: float = 2.0**30
    attach: ClassVar[int | None] = None

    def __call__(self, model: Model, x: Tensor, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        return Recomputed()(model, x, beta, trajectory, r) if trainable(model) else 0.0


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

    def __call__(self, model: Model, x: Tensor, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor:
        z = resample(trajectory.z, r, self.draws)
        log_joint = log_p(model, repeat(x, self.draws), z.flatten(0, 1), beta).view(self.draws, -1)
        return (carry(log_joint) * r.sum(0)).mean()

    def decoder_calls(self, rows: int) -> int:
        return self.draws


@dataclass(frozen=True)
class Recomputed(ThetaRule):
    """The same gradient as ``AllDraws``, sum_i r_i grad ln p(x, z_i) (Lemma 1), from ``chunk`` draws at a time.

    Only one chunk's decoder graph is alive, so memory does not grow with k; the decoder runs once more per draw.
    """

    chunk: int = 1

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"recomputing needs chunks of at least 1 draw, got {self.chunk}")

    def __call__(self, model: Model, x: Tensor, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        if not callable(getattr(model, "parameters", None)):
            raise TypeError(f"recompute needs model.parameters(); {type(model).__name__} has none; use recompute=False")
        theta = trainable(model)
        total: list[Tensor | None] = [None] * len(theta)
        for z, weight in zip(trajectory.z.split(self.chunk), r.split(self.chunk), strict=True):
            log_joint = log_p(model, repeat(x, len(z)), z.flatten(0, 1), beta).view(weight.shape)
            value = torch.where(weight == 0, 0.0, weight * log_joint).sum() / len(x)
            gradients = torch.autograd.grad(value, theta, allow_unused=True)
            total = [
                old if new is None else new if old is None else old + new
                for old, new in zip(total, gradients, strict=True)
            ]
        terms = [((p - p.detach()) * g).sum() for p, g in zip(theta, total, strict=True) if g is not None]
        return torch.stack([term.double() for term in terms]).sum() if terms else 0.0

    def decoder_calls(self, rows: int) -> int:
        return rows


def resample(z: Tensor, r: Tensor, draws: int) -> Tensor:
    """``draws`` rows (draws, batch, ...) of z, row i of an example with probability r_i: samples of q_SIR (Lemma 1)."""
    index = torch.multinomial(r.T, draws, replacement=True).T
    return z[index, torch.arange(z.shape[1], device=z.device)]


def log_p(model: Model, x: Tensor, z: Tensor, beta: float) -> Tensor:
    """ln p(x|z) + beta ln p(z), theta's part of ln w, in float64."""
    return model.log_lik(x, z).double() + beta * model.log_prior(z)


def carry(value: Tensor) -> Tensor:
    """Zero with the gradient of ``value``; a value that is not finite carries nothing."""
    return torch.where(torch.isfinite(value), value - value.detach(), 0.0)
