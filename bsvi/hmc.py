"""Hamiltonian Monte Carlo moves of many chains at once, which leave p(z) p(x|z)^beta as it is (Neal, 2011)."""

from typing import NamedTuple

import torch
from torch import Tensor

from bsvi.model import Model


class Place(NamedTuple):
    """Where the chains are, with both densities and their gradients, so that a new beta costs no decoder call."""

    z: Tensor  # (chains, batch, ...)
    log_lik: Tensor  # (chains, batch), float64
    log_prior: Tensor
    lik_slope: Tensor  # like z
    prior_slope: Tensor

    @classmethod
    def of(cls, model: Model, x: Tensor, z: Tensor) -> "Place":
        rows = z.detach().flatten(0, 1).requires_grad_()
        with torch.enable_grad():
            log_lik, log_prior = model.log_lik(x, rows), model.log_prior(rows)
            (lik_slope,) = torch.autograd.grad(log_lik.sum(), rows)
            (prior_slope,) = torch.autograd.grad(log_prior.sum(), rows)
        values = (log_lik.detach().double(), log_prior.detach().double())
        flat = (*(value.view(z.shape[:2]) for value in values), lik_slope.view(z.shape), prior_slope.view(z.shape))
        return cls(z.detach(), *flat)

    def where(self, yes: Tensor, other: "Place") -> "Place":
        pairs = zip(other, self, strict=True)
        return Place(*(torch.where(yes.view(*yes.shape, *(1,) * (b.ndim - 2)), b, a) for b, a in pairs))

    def slope(self, beta: float) -> Tensor:
        return beta * self.lik_slope + self.prior_slope

    def log_density(self, beta: float) -> Tensor:
        return beta * self.log_lik + self.log_prior


def moved(
    model: Model, x: Tensor, at: Place, momentum: Tensor, step: Tensor, beta: float, leapfrog: int
) -> tuple[Place, Tensor]:
    """One leapfrog trajectory for every chain: where it ends, and the log of its acceptance ratio."""
    step = step.view(*step.shape, *(1,) * (momentum.ndim - 2))
    before = at.log_density(beta) - _energy(momentum)
    momentum = momentum + 0.5 * step * at.slope(beta)
    for i in range(leapfrog):
        at = Place.of(model, x, at.z + step * momentum)
        momentum = momentum + (1.0 if i < leapfrog - 1 else 0.5) * step * at.slope(beta)
    return at, at.log_density(beta) - _energy(momentum) - before


def _energy(momentum: Tensor) -> Tensor:
    return 0.5 * momentum.double().square().reshape(*momentum.shape[:2], -1).sum(-1)
