"""The Gaussian closest to p(z|x) that so many passes find: the base of ``refine_anneal``.

It starts at the encoder's q and climbs to the best diagonal Gaussian. Then rounds learn its correlations from the curvature that
all gradients met so far show. Whatever it is, weights stay unbiased: it never sees the noise of the chains that are weighed.
"""

import math

import torch
from torch import Tensor

from bsvi.evaluation.base_density import Gaussian, GaussianPath, draw_mirrored, log_normal
from bsvi.evaluation.climb import Climb
from bsvi.evaluation.evaluate import cut_into_chunks
from bsvi.evaluation.noise import Noise
from bsvi.refinement import finite

GRAPH = 2  # a decoder call that keeps its graph takes this many times the memory, or somewhat more
_RIDGES = tuple(10.0**power for power in range(-8, 6))
_FLATTEST = 0.1  # the least curvature of a direction, relative to the diagonal Gaussian's: the base stays finite
_RATE = 0.15  # of the climb, at its start
_SETTLED = 0.5  # nats: rounds end where one changes the ELBO by less
_REACH = 0.5  # of the base's radius: how far rounds move the mean after one that was not better; half as far each time


def climb_elbo(path: GaussianPath, noise: Noise, steps: int, samples: int) -> tuple[Gaussian, Tensor, Tensor]:
    """The best diagonal Gaussian by ``steps`` of Adam on the ELBO, with ``samples`` draws each: v and -v.

    Returns it with the points that were met and the gradients of ln p(x, z) there, both (steps * samples, batch, size).
    """
    climb, state, size = Climb(steps=steps, lr=_RATE), None, path.base.mean.shape[1]
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


def improve(
    path: GaussianPath,
    climbed: Gaussian,
    points: Tensor,
    slopes: Tensor,
    noise: Noise,
    rounds: int,
    *,
    draws: int,
    chunk: int | None,
) -> tuple[Gaussian, Tensor, Tensor]:
    """The best base after ``rounds`` of learning from what ``climb_elbo`` returns, whether it has correlations, and its rounds.

    A round learns the curvature around the best base from all points, and looks at what was learned with ``draws`` draws of its
    own. Where its ELBO, less two errors, is higher, it is the best from then on; else the next round moves less. An example
    whose ELBO a round leaves as it is has learned all and takes no more of them. The path's own base, where the climb
    started, stays where the climb has made it worse.
    """
    start, _, _ = look_around(path, path.base, noise, 0, draws, chunk, gradient=False)
    score, *seen = look_around(path, climbed, noise, 0, draws, chunk, gradient=rounds > 0)
    best, score = climbed.where(start > score, path.base), torch.maximum(score, start)
    learned, reach = torch.zeros_like(score, dtype=torch.bool), torch.full_like(score, math.inf)
    whole, used, left = best, torch.zeros_like(score), torch.arange(len(score), device=score.device)
    for i in range(rounds):
        points, slopes = torch.cat([points, seen[0]]), torch.cat([slopes, seen[1]])
        new = learn_curvature(best, points, slopes, reach)
        found, *seen = look_around(path, new, noise, 1 + i, draws, chunk)
        better, moving = found > score, ~((found - score).abs() < _SETTLED)
        best, score = best.where(better, new), torch.where(better, found, score)
        whole, learned[left], used[left] = whole.put(left, best), learned[left] | better, used[left] + 1
        reach = torch.where(better, reach, (reach / 2).clamp(max=_REACH))
        if not moving.any():
            break
        if not moving.all():
            path, noise, best, left = path.take(moving), noise.take(moving), best.take(moving), left[moving]
            score, reach = score[moving], reach[moving]
            points, slopes, *seen = (each[:, moving] for each in (points, slopes, *seen))
    return whole, learned, used


def look_around(
    path: GaussianPath,
    base: Gaussian,
    noise: Noise,
    number: int,
    draws: int,
    chunk: int | None,
    *,
    gradient: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The base's ELBO less two of its errors, on draws of this number, with the draws and the gradients of ln p(x, z) there."""
    v = draw_mirrored(noise, number * draws, draws, base.mean.shape[1], base.mean.dtype)
    rows = list(cut_into_chunks(draws, path.rows.x, chunk, GRAPH))
    value, slope = map(torch.cat, zip(*(path.around(base).look(part, gradient) for part in v.split(rows)), strict=True))
    log_w = value - log_normal(v)
    error = log_w.std(0, correction=0) / math.sqrt(max(1, draws - 1))
    score = (log_w.mean(0) - 2 * error).nan_to_num(-math.inf, neginf=-math.inf)
    slope = finite(slope)
    if base.factor.ndim == 2:
        slope = slope / base.factor
    else:
        upper, columns = base.factor.mT, slope.permute(1, 2, 0)
        slope = torch.linalg.solve_triangular(upper, columns, upper=True).permute(2, 0, 1)
    return score, base.mean + base.stretch(v), slope


def learn_curvature(base: Gaussian, points: Tensor, slopes: Tensor, reach: Tensor) -> Gaussian:
    """The Gaussian whose log-density has the gradients seen: its precision is minus their slope.

    In v = whiten(u) the gradient of ln p(x, z) is about c - (I + A) v. A ridge regression of its remainder on v, whose penalty
    generalised cross-validation chooses per example, gives c and A; points far away count less. The mean moves by ``reach``,
    (batch,), of the base's radius at most.
    """
    size, factor = base.mean.shape[1], base.triangle()
    v = (points - base.mean).transpose(0, 1) @ invert_triangle(factor).mT  # (batch, count, size)
    rest = (slopes.transpose(0, 1) @ factor).add_(v)
    weight = (1 + v.square().mean(-1, keepdim=True) / 4) ** -2
    weight = weight / weight.mean(1, keepdim=True)
    v_mean, rest_mean = ((weight * each).mean(1, keepdim=True) for each in (v, rest))
    a, b = (each.sub_(mean).mul_(weight.sqrt()) for each, mean in ((v, v_mean), (rest, rest_mean)))
    # what overflows teaches nothing
    gram, cross, total = (finite(part).double() for part in (a.mT @ a, a.mT @ b, b.square().sum((1, 2))))
    linear = regress(gram, cross, total, len(points))
    precision = bound_curvature(torch.eye(size).to(linear) - 0.5 * (linear + linear.mT))
    lower, failed = factor_covariance(precision)
    ascent = (rest_mean - v_mean.double() @ linear) @ lower @ lower.mT  # (batch, 1, size)
    length = ascent.norm(dim=-1, keepdim=True)
    ascent = ascent * (reach.view(-1, 1, 1) * math.sqrt(size) / length.clamp_min(1e-12)).clamp(max=1.0)
    mean = base.mean + (factor.double() @ ascent.mT).squeeze(-1)
    learned = Gaussian(mean.to(base.mean.dtype), (factor.double() @ lower).to(base.mean.dtype))
    good = (failed == 0) & torch.isfinite(learned.factor).flatten(1).all(-1) & torch.isfinite(learned.mean).all(-1)
    return Gaussian(base.mean, factor).where(good, learned)


def regress(gram: Tensor, cross: Tensor, total: Tensor, count: int) -> Tensor:
    """The matrix of a ridge regression, from a'a, a'b and |b|^2 of ``count`` rows, by generalised cross-validation."""
    power, axes = torch.linalg.eigh(gram)  # (batch, size)
    power, seen = power.clamp_min(0.0), axes.mT @ cross
    ridge = power.new_tensor(_RIDGES)[:, None]
    shrink = 1 / (power[:, None] + ridge)  # (batch, ridges, size)
    strength = seen.square().sum(-1)[:, None]
    left = total[:, None] - (strength * shrink * (2 - power[:, None] * shrink)).sum(-1)
    free = (1 - ((power[:, None] * shrink).sum(-1) + 1) / count).clamp_min(1e-3)
    chosen = (left / free.square()).argmin(1)
    return axes @ (seen * shrink[torch.arange(len(chosen), device=chosen.device), chosen][..., None])


def bound_curvature(precision: Tensor) -> Tensor:
    """The precision with no direction flatter than ``_FLATTEST``; eigenvectors are taken only where there is one."""
    flattest = _FLATTEST * torch.eye(precision.shape[-1]).to(precision)
    flat = torch.linalg.cholesky_ex(precision - flattest).info != 0
    if flat.any():
        curve, axes = torch.linalg.eigh(precision[flat])
        precision[flat] = axes * curve.clamp_min(_FLATTEST)[:, None] @ axes.mT
    return precision


def factor_covariance(precision: Tensor) -> tuple[Tensor, Tensor]:
    """The lower triangle of the inverse of a precision, and where there is none: that of the matrix read from its end."""
    upper, failed = torch.linalg.cholesky_ex(precision.flip(-2, -1))
    return invert_triangle(upper).flip(-2, -1).mT, failed


def invert_triangle(lower: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower, torch.eye(lower.shape[-1]).to(lower).expand_as(lower), upper=False)
