"""Hamiltonian Monte Carlo moves of many chains at once, which leave a density on a path to p(x, z) as it is (Neal, 2011).

Chains move in coordinates u that may be any real numbers. Where the prior lives on a part of them only (a Gamma, a Beta, a
Dirichlet), z is a smooth one-to-one function of u, and the density of u is that of z times |dz/du|.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    ComposeTransform,
    Distribution,
    Independent,
    IndependentTransform,
    MixtureSameFamily,
    Transform,
    biject_to,
    constraints,
)

from bsvi.evaluation.side_by_side import SideBySide
from bsvi.examples import Nested, repeat
from bsvi.model import Model, call_with_x


@dataclass(frozen=True)
class Coordinates:
    """z = transform(u); None where z is u."""

    transform: Transform | None = None
    support: constraints.Constraint | None = (
        None  # where single numbers of z are bounded: to see what rounding put outside
    )

    @classmethod
    def of(cls, prior: Distribution | None, device: torch.device) -> "Coordinates":
        """Those of the prior's support; one clear line where there are none."""
        if prior is None:
            return cls()
        support = find_support(prior)
        try:
            transform = biject_to(support)
            u = torch.zeros(transform.inverse_shape(prior.batch_shape + prior.event_shape), device=device)
            transform.log_abs_det_jacobian(u, transform(u))
        except NotImplementedError:
            raise ValueError(
                f"chains move z by gradients, in coordinates without bounds, and know none for the prior "
                f"{type(prior).__name__} with support {support}; use evaluate, or a continuous prior"
            ) from None
        inner: Transform = transform
        while isinstance(inner, IndependentTransform):
            inner, support = inner.base_transform, getattr(support, "base_constraint", support)
        if isinstance(inner, ComposeTransform) and not inner.parts:
            return cls()
        return cls(transform, support if support.event_dim == 0 or isinstance(support, SideBySide) else None)

    def z(self, u: Tensor) -> Tensor:
        return u if self.transform is None else self.transform(u)

    def u(self, z: Tensor) -> Tensor:
        return z if self.transform is None else self.transform.inv(z).detach()

    def is_valid(self, u: Tensor) -> Tensor:
        """Which rows are numbers, and inside the support as numbers."""
        if self.transform is None:
            return torch.isfinite(u).reshape(len(u), -1).all(-1)
        z = self.z(u)
        tests = [torch.isfinite(u), torch.isfinite(z), *([] if self.support is None else [self.support.check(z)])]
        return torch.stack([test.reshape(len(u), -1).all(-1) for test in tests]).all(0)

    def pull_back(self, u: Tensor, z: Tensor, slopes: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gradients with respect to z as gradients with respect to u, from which z was computed."""
        if self.transform is None:
            return slopes
        return tuple(torch.autograd.grad(z, u, slope, retain_graph=True)[0] for slope in slopes)

    def log_volume(self, u: Tensor, z: Tensor) -> Tensor | float:
        """ln |dz/du| of each row, with its graph."""
        if self.transform is None:
            return 0.0
        return self.transform.log_abs_det_jacobian(u, z).reshape(len(u), -1).sum(-1)

    def log_jacobian(self, u: Tensor, z: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """ln |dz/du| of each row, and its gradient."""
        value = self.log_volume(u, z)
        if not isinstance(value, Tensor):
            return 0.0, 0.0
        return value.detach().double(), torch.autograd.grad(value.sum(), u, retain_graph=True)[0]


def find_support(prior: Distribution) -> constraints.Constraint:
    """Where the prior lives; that of a mixture is its components'."""
    if isinstance(prior, MixtureSameFamily):
        return find_support(prior.component_distribution)
    if isinstance(prior, Independent) and prior.reinterpreted_batch_ndims:
        return constraints.independent(find_support(prior.base_dist), prior.reinterpreted_batch_ndims)
    try:
        return prior.support or constraints.real
    except NotImplementedError:
        return constraints.real


class Position(NamedTuple):
    """Where the chains are, with both densities and their gradients, so that a new beta costs no decoder call.

    Along a path from a base density to p(x, z) the density is base * ratio^beta, where ratio = p(x, z) / base.
    """

    u: Tensor  # (chains, batch, ...)
    log_ratio: Tensor  # (chains, batch), float64; NaN where u is out of numbers
    log_base: Tensor  # of u, not of z: with ln |dz/du|
    ratio_slope: Tensor  # like u
    base_slope: Tensor

    def where(self, yes: Tensor, other: "Position") -> "Position":
        pairs = zip(other, self, strict=True)
        return Position(*(_where(yes, b, a) for b, a in pairs))

    def slope(self, beta: float) -> Tensor:
        return beta * self.ratio_slope + self.base_slope

    def log_density(self, beta: float) -> Tensor:
        return beta * self.log_ratio + self.log_base


Path = Callable[[Tensor], Position]  # u (chains, batch, ...) to its position on the path


class PriorPath:
    """The path p(z) p(x|z)^beta: the base is the prior, the ratio the likelihood."""

    def __init__(self, model: Model, x: Nested, coordinates: Coordinates) -> None:
        self.model, self.coordinates, self.rows = model, coordinates, RepeatedRows(x)

    def __call__(self, u: Tensor) -> Position:
        coordinates, x = self.coordinates, self.rows.repeat(len(u))
        rows = u.detach().flatten(0, 1)
        fine = coordinates.is_valid(rows)
        rows = _where(fine, rows, 0.0).requires_grad_()  # no decoder is asked about NaN
        with torch.enable_grad():
            made = coordinates.z(rows)
            z = made.detach().requires_grad_()
            log_lik, log_prior = self.model.log_lik(x, z), call_with_x(self.model.log_prior, z, x)
            slopes = coordinates.pull_back(rows, made, (find_slope(log_lik, z), find_slope(log_prior, z)))
            log_jacobian, bend = coordinates.log_jacobian(rows, made)
        values = (log_lik.detach().double(), log_prior.detach().double() + log_jacobian)
        log_lik, log_prior = (value.masked_fill(~fine, torch.nan).view(u.shape[:2]) for value in values)
        return Position(u.detach(), log_lik, log_prior, slopes[0].view(u.shape), (slopes[1] + bend).view(u.shape))


class RepeatedRows:
    """A batch as often as there are chains, made once for each number of them."""

    def __init__(self, x: Nested) -> None:
        self.x, self.times, self.repeated = x, 1, x

    def repeat(self, times: int) -> Nested:
        if times != self.times:
            self.times, self.repeated = times, repeat(self.x, times)
        return self.repeated


def move_chains(
    path: Path, at: Position, momentum: Tensor, step: Tensor, beta: float, leapfrog: int
) -> tuple[Position, Tensor]:
    """One leapfrog trajectory for every chain: where it ends, and the log of its acceptance ratio."""
    step = step.view(*step.shape, *(1,) * (momentum.ndim - 2))
    before = at.log_density(beta) - _energy(momentum)
    momentum = momentum + 0.5 * step * at.slope(beta)
    for i in range(leapfrog):
        at = path(at.u + step * momentum)
        momentum = momentum + (1.0 if i < leapfrog - 1 else 0.5) * step * at.slope(beta)
    return at, at.log_density(beta) - _energy(momentum) - before


def find_slope(value: Tensor, rows: Tensor) -> Tensor:
    """The gradient of each row's value; zero for a decoder that ignores z, or a prior that is flat."""
    gradient = torch.autograd.grad(value.sum(), rows, allow_unused=True)[0] if value.requires_grad else None
    return torch.zeros_like(rows) if gradient is None else gradient


def _where(yes: Tensor, values: Tensor, others: Tensor | float) -> Tensor:
    return torch.where(yes.view(*yes.shape, *(1,) * (values.ndim - yes.ndim)), values, others)


def _energy(momentum: Tensor) -> Tensor:
    return 0.5 * momentum.double().square().reshape(*momentum.shape[:2], -1).sum(-1)
