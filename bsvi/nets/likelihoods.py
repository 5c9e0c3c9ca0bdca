"""Pixel likelihoods p(x | params): what a decoder's output map means, its log-probability and how to draw from it.

To add one: a module with `log_prob(x, params)`, `sample(params, noise)` and `mean(params)`, and a row in
bsvi/tables/likelihoods.py.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

GROUP = 16  # values that are added or multiplied in their own precision before float64 takes over


def sum_pixels(log_prob: Float[Tensor, " batch *pixels"]) -> Float[Tensor, " batch"]:
    """Return the sum over all but the first axis, in float64: at -2000 nats float32 is only good to 2.4e-4.

    Groups of 16 are summed as they are, which costs no more than single values do in precision: converting all would take
    as long as the rest of a likelihood.

    >>> sum_pixels(torch.ones(2, 1, 3, 3))
    tensor([9., 9.], dtype=torch.float64)
    """
    values = log_prob.flatten(1)
    if values.shape[1] % GROUP == 0:
        values = values.unflatten(1, (GROUP, -1)).sum(1)
    return values.sum(1, dtype=torch.float64)


def sum_of_logs(values: Float[Tensor, "batch pixels"]) -> Float[Tensor, " batch"]:
    """Return the sum of the logarithms of values in [1/4, 1], in float64: of products of up to 16, as a logarithm costs more.

    >>> import math
    >>> (sum_of_logs(torch.full((2, 24), 0.5)) / math.log(0.5)).round()
    tensor([24., 24.], dtype=torch.float64)
    """
    for _ in range(4):
        if values.shape[1] % 2:
            break
        one, two = values.chunk(2, 1)
        values = one * two
    return values.log().sum(1, dtype=torch.float64)


BEYOND = -1e30  # in place of minus infinity, of which infinity times zero would be made: its sigmoid is exactly 0


# ln p(x | params) of a batch in float64, and its derivative by params, from params and what ``prepare`` made of x. Both may have
# a graph: the derivative its own, the value one that carries the derivative (``carry_slope``).
Weigh = Callable[..., tuple[Tensor, Tensor]]


def carry_slope(value: Tensor, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """The value with a graph in which its derivative by each tensor is the slope beside it, where graphs are made at all.

    For values that are computed in pieces whose own derivatives would be longer than the known one, or undefined at a corner.

    >>> x = torch.tensor([[2.0, 3.0]], requires_grad=True)
    >>> carry_slope(x.detach().square().sum(1), (x, 2 * x)).sum().backward(); x.grad
    tensor([[4., 6.]])
    """
    if not torch.is_grad_enabled():
        return value
    value = value.detach()
    for at, slope in parts:
        value = value + ((at - at.detach()) * slope.detach()).sum(1)
    return value


class Bernoulli(nn.Module):
    """Binary pixels; the decoder's output is the logit of p(x = 1). The paper's likelihood for Omniglot.

    >>> Bernoulli().log_prob(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)).exp()
    tensor([0.0625], dtype=torch.float64)
    """

    def log_prob(
        self, x: Float[Tensor, "batch 1 height width"], params: Float[Tensor, "batch 1 height width"]
    ) -> Float[Tensor, " batch"]:
        """Return ln p(x | logits) per image, summed over the pixels in float64."""
        # x*l - softplus(l): for x in {0, 1} this is exactly -softplus(-l) and -softplus(l)
        return sum_pixels(x * params - F.softplus(params))

    def prepare(self, x: Float[Tensor, "batch pixels"]) -> tuple[Weigh, tuple[Tensor, ...]] | None:
        """Return how logits (batch, pixels) are weighed with their derivative, and what of x it takes; None for a subclass."""
        return (weigh_bits, (x,)) if type(self) is Bernoulli else None

    def sample(self, params: Float[Tensor, "*shape"], noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return pixels in {0, 1} from logits and uniform noise in [0, 1)."""
        return (noise < torch.sigmoid(params)).to(params.dtype)

    def mean(self, params: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the expected pixel, for reconstructions."""
        return torch.sigmoid(params)


class DiscretisedLogistic(nn.Module):
    """256 grey levels j/255; a logistic density around the decoder's output, integrated over each level's bin.

    The paper's likelihood for SVHN and FashionMNIST: one global trainable scale, bounded below by 0.001. The mean is
    the decoder's output plus 1/2, so that a fresh network starts in the middle of the grey scale. The two edge bins
    take the tails, so the 256 probabilities sum to one.

    >>> likelihood = DiscretisedLogistic()
    >>> levels = torch.arange(256.0).view(256, 1, 1, 1) / 255
    >>> round(likelihood.log_prob(levels, torch.zeros_like(levels)).exp().sum().item(), 5)
    1.0
    """

    levels = 256

    def __init__(self, rho: float = -2.0, minimum: float = 0.001) -> None:
        super().__init__()
        self.rho = nn.Parameter(torch.tensor(float(rho)))  # a first scale of 0.128: half the grey scale within one
        self.minimum = minimum

    @property
    def scale(self) -> Tensor:
        """The one scale of all pixels: minimum + softplus(rho)."""
        return self.minimum + F.softplus(self.rho)

    def mean(self, params: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the centre of the logistic density for each pixel."""
        return params + 0.5

    def log_prob(
        self, x: Float[Tensor, "batch 1 height width"], params: Float[Tensor, "batch 1 height width"]
    ) -> Float[Tensor, " batch"]:
        """Return ln p(x | mean, scale) per image, summed over the pixels in float64.

        For a middle bin [q, p] the identity sigma(p) - sigma(q) = sigma(p) sigma(-q) (1 - exp(q - p)) is exact, and
        its logarithm neither cancels nor loses its gradient however far the mean is away.
        """
        last = self.levels - 1
        inverse = self.scale.reciprocal()
        centred = (x - self.mean(params)) * inverse
        half = 0.5 / last * inverse
        # The edge bins reach to infinity, where the factor of that side is 1. On a CPU products are the cheapest masks, and
        # clamped levels the cheapest way to them: comparing and converting would cost as much as a logarithm.
        level = (x * last).round()
        not_last, not_first = (last - level).clamp(0, 1), level.clamp(0, 1)
        upper = not_last * F.logsigmoid(centred + half)
        lower = not_first * F.logsigmoid(half - centred)
        middle = sum_pixels(not_last * not_first) * torch.log(-torch.expm1(-2 * half))
        return sum_pixels(upper + lower) + middle

    def prepare(self, x: Float[Tensor, "batch pixels"]) -> tuple[Weigh, tuple[Tensor, ...]] | None:
        """Return how params (batch, pixels) are weighed with their derivative, and what of x it takes; None for a subclass."""
        if type(self) is not DiscretisedLogistic:
            return None
        last = self.levels - 1
        inverse = self.scale.reciprocal()
        half, centred, level = 0.5 / last * inverse, (x - 0.5) * inverse, (x * last).round()
        from_upper = torch.where(level < last, -centred - half, BEYOND)  # an edge bin has one side only
        from_lower = torch.where(level > 0, centred - half, BEYOND)
        middle = ((level > 0) & (level < last)).sum(1).double() * torch.log(-torch.expm1(-2 * half))
        return weigh_levels, (from_upper, from_lower, inverse, middle)

    def sample(self, params: Float[Tensor, "*shape"], noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return pixels on the grid j/255 from the decoder's output and uniform noise in [0, 1)."""
        last = self.levels - 1
        # logit(0) is -infinity, which the clamp turns into the lowest level: no special case for the end of the noise
        value = self.mean(params) + self.scale * torch.logit(noise)
        return (value * last).round().clamp(0, last) / last


def weigh_bits(logits: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """``Bernoulli.log_prob`` and its derivative by the logits."""
    p = torch.sigmoid(logits)
    slope = x - p
    # -softplus(l) = ln sigmoid(-|l|) - max(l, 0); for x of 0 and 1 nothing is lost in the difference below
    value = sum_of_logs(torch.maximum(p, 1 - p)) - sum_pixels(logits.clamp(min=0) - x * logits)
    return carry_slope(value, (logits, slope)), slope


def weigh_levels(
    params: Tensor, from_upper: Tensor, from_lower: Tensor, inverse: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """``DiscretisedLogistic.log_prob`` and its derivative: each factor sigma(t) of a bin is min(t, 0) + ln sigma(|t|)."""
    above, below = torch.addcmul(from_upper, params, inverse), torch.addcmul(from_lower, params, inverse, value=-1)
    p, q = torch.sigmoid(above), torch.sigmoid(below)  # above and below are -t of both factors
    value = sum_of_logs(torch.maximum(p, 1 - p) * torch.maximum(q, 1 - q))
    value = value - sum_pixels(above.clamp(min=0) + below.clamp(min=0))
    return carry_slope(value, (above, -p), (below, -q)) + middle, (q - p) * inverse
