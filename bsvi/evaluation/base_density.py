"""A Gaussian for every example, and the path from it to p(x, z): where ``refine_anneal`` sends its chains."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from bsvi.draws import draw, log_likelihood, log_prior
from bsvi.evaluation.hmc import Coordinates, Position, RepeatedRows, find_slope
from bsvi.evaluation.noise import Noise
from bsvi.examples import Nested, take
from bsvi.model import LOG_2_PI, Model

MOMENTS = 64  # draws from which mean and sd are taken where a family does not know them


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

    def take(self, rows: Tensor) -> "Gaussian":
        """Those of some examples."""
        return Gaussian(self.mean[rows], self.factor[rows])

    def put(self, rows: Tensor, others: "Gaussian") -> "Gaussian":
        """With ``others`` at the examples of these numbers, as lower triangles."""
        factor = self.triangle().index_copy(0, rows, others.triangle())
        return Gaussian(self.mean.index_copy(0, rows, others.mean), factor)

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
        self.log_det, self.direct = base.log_det(), DirectDecoder(model, self.rows, coordinates)

    def __call__(self, v: Tensor) -> Position:
        log_target, slope = self.look(v)
        log_base = log_normal(v)
        return Position(v, log_target - log_base, log_base, slope + v, -v)

    def look(self, v: Tensor, gradient: bool = True) -> tuple[Tensor, Tensor]:
        """ln p(x, z) + ln |dz/dv| of (rows, batch), NaN where v is out of numbers, and its gradient by v."""
        u = (self.base.mean + self.base.stretch(v)).flatten(0, 1).view(-1, *self.shape)
        fine = self.coordinates.is_valid(u)
        u = torch.where(fine.view(-1, *(1,) * (u.ndim - 1)), u, 0.0).detach()
        value, slope = self.weigh(u, len(v), gradient)
        value = value.detach().double().masked_fill(~fine, torch.nan).view(v.shape[:2]) + self.log_det
        return value, self.base.pull_back(slope.detach().view(v.shape))

    def weigh(self, u: Tensor, times: int, gradient: bool) -> tuple[Tensor, Tensor]:
        """ln p(x, z) + ln |dz/du| of rows of u, and its gradient by u (zero where none is asked for)."""
        x, decode = self.rows.repeat(times), self.direct.find(times)
        if decode is not None:
            with torch.no_grad():
                value, slope = decode(u, gradient)
                return value.double() + log_prior(self.model, u, x), slope - u if gradient else torch.zeros_like(u)
        u = u.requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            z = self.coordinates.z(u)
            value = log_likelihood(self.model, x, z) + log_prior(self.model, z, x) + self.coordinates.log_volume(u, z)
        return value, find_slope(value, u) if gradient else torch.zeros_like(u)

    def around(self, base: Gaussian) -> "GaussianPath":
        """The path of the same example from another base."""
        other = copy(self)
        other.base, other.log_det = base, base.log_det()
        return other

    def take(self, rows: Tensor) -> "GaussianPath":
        """The path of some examples."""
        return GaussianPath(self.model, take(self.rows.x, rows), self.coordinates, self.shape, self.base.take(rows))

    def start_from(self, z: Tensor) -> Tensor:
        """v of z, (rows, batch, ...)."""
        return self.base.whiten(self.coordinates.u(z).flatten(2))


class DirectDecoder:
    """ln p(x|z) with its derivative for a batch as often as there are rows, where the model knows it (``VAE.slopes``).

    Such a model has a unit Gaussian prior. Autograd takes twice the time to the same numbers.
    """

    def __init__(self, model: Model, rows: RepeatedRows, coordinates: Coordinates) -> None:
        mixed = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
        plain = coordinates.transform is None and not mixed
        self.offered, self.rows = getattr(model, "slopes", None) if plain else None, rows
        self.times, self.decode = 0, None

    def find(self, times: int) -> Any:
        """A function of z and of whether the derivative is asked for, made once for each number of rows; or None."""
        if self.offered is not None and times != self.times:
            self.times, self.decode = times, self.offered(self.rows.repeat(times))
        return self.decode


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
