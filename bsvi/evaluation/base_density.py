"""A Gaussian close to p(z|x), for every example: the base from which ``refine_anneal`` sends its chains out.

It starts at the encoder's q, climbs to the best diagonal Gaussian, and takes its correlations from the curvature that the
gradients met on the way show. Whatever it is, weights stay unbiased, as it never sees the noise of the chains that are weighed.
"""

import math
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bsvi.draws import draw, log_likelihood, log_prior
from bsvi.evaluation.gap import Climb
from bsvi.evaluation.hmc import Coordinates, Position, RepeatedRows, slope_of
from bsvi.evaluation.noise import Noise
from bsvi.examples import Nested
from bsvi.model import LOG_2_PI, Model
from bsvi.refinement import finite

MOMENTS = 64  # draws from which mean and sd are taken where a family does not know them
WIDEST = 256  # numbers of z up to which correlations are learned: their cost grows with the cube
_RIDGES = tuple(10.0**power for power in range(-8, 6))
_FLATTEST = 0.1  # the least curvature of a direction, relative to the diagonal Gaussian's: the base stays finite


@dataclass(frozen=True)
class Gaussian:
    """u = mean + factor v with v ~ N(0, I); the factor is a column of sd, or a lower triangle."""

    mean: Tensor  # (batch, size)
    factor: Tensor  # (batch, size) or (batch, size, size)

    def stretch(self, v: Tensor) -> Tensor:
        """factor v, for v of (rows, batch, size)."""
        return self.factor * v if self.factor.ndim == 2 else torch.einsum("bij,rbj->rbi", self.factor, v)

    def pull_back(self, slope: Tensor) -> Tensor:
        """The gradient by v from that by u."""
        return self.factor * slope if self.factor.ndim == 2 else torch.einsum("bij,rbi->rbj", self.factor, slope)

    def whiten(self, u: Tensor) -> Tensor:
        """v of u, (rows, batch, size)."""
        if self.factor.ndim == 2:
            return (u - self.mean) / self.factor
        columns = (u - self.mean).permute(1, 2, 0)
        return torch.linalg.solve_triangular(self.factor, columns, upper=False).permute(2, 0, 1)

    def log_det(self) -> Tensor:
        diagonal = self.factor if self.factor.ndim == 2 else self.factor.diagonal(dim1=-2, dim2=-1)
        return diagonal.double().log().sum(-1)

    def triangle(self) -> Tensor:
        return torch.diag_embed(self.factor) if self.factor.ndim == 2 else self.factor

    def where(self, yes: Tensor, other: "Gaussian") -> "Gaussian":
        """``other`` for the examples that say yes."""
        a, b = (
            (self.triangle(), other.triangle())
            if self.factor.ndim != other.factor.ndim
            else (self.factor, other.factor)
        )
        return Gaussian(
            torch.where(yes[:, None], other.mean, self.mean), torch.where(yes.view(-1, *(1,) * (a.ndim - 1)), b, a)
        )


class GaussianPath:
    """The path N(v; 0, I)^(1 - beta) p(x, z)^beta in the base's own coordinates: z = T(mean + factor v).

    The density of v is that of z times |dz/dv|, which is the factor's determinant and T's (``Coordinates``).
    """

    def __init__(self, model: Model, x: Nested, coordinates: Coordinates, shape: torch.Size, base: Gaussian) -> None:
        self.model, self.rows, self.coordinates, self.shape, self.base = (
            model,
            RepeatedRows(x),
            coordinates,
            shape,
            base,
        )
        self.log_det = base.log_det()

    def __call__(self, v: Tensor) -> Position:
        log_target, slope = self.look(v)
        log_base = log_normal(v)
        return Position(v, log_target - log_base, log_base, slope + v, -v)

    def look(self, v: Tensor, gradient: bool = True) -> tuple[Tensor, Tensor]:
        """ln p(x, z) + ln |dz/dv| of (rows, batch), NaN where v is out of numbers, and its gradient by v."""
        u = (self.base.mean + self.base.stretch(v)).flatten(0, 1).view(-1, *self.shape)
        fine = self.coordinates.is_valid(u)
        u = torch.where(fine.view(-1, *(1,) * (u.ndim - 1)), u, 0.0).detach().requires_grad_(gradient)
        x = self.rows.repeat(len(v))
        with torch.set_grad_enabled(gradient):
            z = self.coordinates.z(u)
            value = log_likelihood(self.model, x, z) + log_prior(self.model, z, x) + self.coordinates.log_volume(u, z)
        slope = slope_of(value, u) if gradient else torch.zeros_like(u)
        value = value.detach().double().masked_fill(~fine, torch.nan).view(v.shape[:2]) + self.log_det
        return value, self.base.pull_back(slope.detach().view(v.shape))

    def around(self, base: Gaussian) -> "GaussianPath":
        """The path of the same example from another base."""
        other = copy(self)
        other.base, other.log_det = base, base.log_det()
        return other

    def start_from(self, z: Tensor) -> Tensor:
        """v of z, (rows, batch, ...)."""
        return self.base.whiten(self.coordinates.u(z).flatten(2))


def log_normal(v: Tensor) -> Tensor:
    """ln N(v; 0, I) in float64."""
    return -0.5 * (v.double().square().sum(-1) + v.shape[-1] * LOG_2_PI)


def draw_mirrored(noise: Noise, first: int, count: int, size: int, dtype: torch.dtype) -> Tensor:
    """``count`` rows of standard normal numbers, of which the second half is the first with its sign turned."""
    half = noise.normal(first, (count + 1) // 2, size, dtype)
    return torch.cat([half, -half])[:count]


def match_moments(q: Distribution, batch: int, coordinates: Coordinates) -> tuple[Gaussian, torch.Size]:
    """The diagonal Gaussian with q's mean and sd in unbounded coordinates, and the shape of these."""
    moments = None if coordinates.transform is not None else _known_moments(getattr(q, "q", q))
    if moments is None:
        u = coordinates.u(draw(q, MOMENTS, batch).z.detach())
        moments = u.mean(0), u.std(0)
    mean, sd = moments
    tiny = torch.finfo(mean.dtype).tiny
    return Gaussian(mean.flatten(1), sd.clamp_min(tiny).flatten(1)), mean.shape[1:]


def _known_moments(q: Any) -> tuple[Tensor, Tensor] | None:
    try:
        mean, sd = q.mean.detach(), q.variance.detach().sqrt()
    except (NotImplementedError, AttributeError):
        return None
    return (mean, sd) if torch.isfinite(mean).all() and torch.isfinite(sd).all() else None  # a Cauchy has none


def climb_elbo(path: GaussianPath, noise: Noise, steps: int, samples: int) -> tuple[Gaussian, Tensor, Tensor]:
    """The best diagonal Gaussian by ``steps`` of Adam on the ELBO, with ``samples`` draws each: v and -v.

    Returns it with the points that were met and the gradients of ln p(x, z) there, both (steps * samples, batch, size).
    """
    climb, state, size = Climb(steps=steps), None, path.base.mean.shape[1]
    lambda_ = torch.cat([path.base.mean, 2 * path.base.factor.log()], -1)
    points, slopes = [], []
    for i in range(steps):
        mean, log_var = lambda_[:, :size], lambda_[:, size:].clamp(-20.0, 20.0)
        base = Gaussian(mean, (0.5 * log_var).exp())
        v = draw_mirrored(noise, i * samples, samples, size, mean.dtype)
        _, slope = path.around(base).look(v)
        slope = finite(slope)
        points.append(mean + base.factor * v)
        slopes.append(slope / base.factor)
        gradient = torch.cat([slopes[-1].mean(0), 0.5 * ((slope * v).mean(0) + 1.0)], -1)
        lambda_, state = climb.ascend(lambda_, gradient, state)
    log_var = lambda_[:, size:].clamp(-20.0, 20.0)
    return Gaussian(lambda_[:, :size], (0.5 * log_var).exp()), torch.cat(points), torch.cat(slopes)


def learn_curvature(base: Gaussian, points: Tensor, slopes: Tensor, reach: float = 0.5) -> Gaussian:
    """The Gaussian whose log-density has the gradients seen: its precision is minus their slope.

    In v = whiten(u) the gradient of ln p(x, z) is about c - (I + A) v. A ridge regression of its remainder on v, whose penalty
    generalised cross-validation chooses per example, gives c and A; points far away count less. The mean moves by ``reach`` of
    the base's radius at most.
    """
    size, count = base.mean.shape[1], len(points)
    factor = base.triangle().double()
    wide = Gaussian(base.mean.double(), factor)
    v, slopes = wide.whiten(points.double()), wide.pull_back(slopes.double())
    weight = (1 + v.square().mean(-1, keepdim=True) / 4) ** -2
    weight = weight / weight.mean(0)
    rest = slopes + v
    v_mean, rest_mean = (weight * v).mean(0), (weight * rest).mean(0)
    a, b = ((weight.sqrt() * each).transpose(0, 1) for each in (v - v_mean, rest - rest_mean))
    power, axes = torch.linalg.eigh(a.mT @ a)  # (batch, size)
    power, seen = power.clamp_min(0.0), axes.mT @ (a.mT @ b)
    ridge = power.new_tensor(_RIDGES)[:, None]
    shrink = 1 / (power[:, None] + ridge)  # (batch, ridges, size)
    strength = seen.square().sum(-1)[:, None]
    left = b.square().sum((1, 2))[:, None] - (strength * shrink * (2 - power[:, None] * shrink)).sum(-1)
    free = (1 - ((power[:, None] * shrink).sum(-1) + 1) / count).clamp_min(1e-3)
    chosen = (left / free.square()).argmin(1)
    linear = axes @ (seen * shrink[torch.arange(len(chosen), device=chosen.device), chosen][..., None])
    curve, axes = torch.linalg.eigh(-0.5 * (linear + linear.mT))
    curve = (1 + curve).clamp_min(_FLATTEST)
    ascent = (rest_mean - torch.einsum("bi,bij->bj", v_mean, linear))[:, None] @ axes / curve[:, None] @ axes.mT
    length = ascent.norm(dim=-1, keepdim=True)
    ascent = ascent * (reach * math.sqrt(size) / length.clamp_min(1e-12)).clamp(max=1.0)
    lower, failed = torch.linalg.cholesky_ex((axes / curve[:, None]) @ axes.mT)
    mean = base.mean.double() + (factor @ ascent.mT).squeeze(-1)
    learned = Gaussian(mean.to(base.mean.dtype), (factor @ lower).to(base.mean.dtype))
    good = (failed == 0) & torch.isfinite(learned.factor).flatten(1).all(-1) & torch.isfinite(learned.mean).all(-1)
    return Gaussian(base.mean, base.triangle()).where(good, learned)


def choose(path: GaussianPath, bases: list[Gaussian], noise: Noise, draws: int) -> tuple[Gaussian, Tensor]:
    """For each example the base of the highest ELBO, less two of its errors, and its number.

    On ``draws`` draws that nothing else sees; the same for all bases.
    """
    v = draw_mirrored(noise, 0, draws, bases[0].mean.shape[1], bases[0].mean.dtype)
    scores = []
    for base in bases:
        log_w = path.around(base).look(v, gradient=False)[0] - log_normal(v)
        error = log_w.std(0, correction=0) / math.sqrt(max(1, draws - 1))
        scores.append((log_w.mean(0) - 2 * error).nan_to_num(-math.inf, neginf=-math.inf))
    best = torch.stack(scores).argmax(0)
    base = bases[0]
    for i, other in enumerate(bases[1:], 1):
        base = base.where(best == i, other)
    return base, best
