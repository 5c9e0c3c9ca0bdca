"""A step of Algorithm 1 (l.6-9) as one function of tensors, for models that know their slope by z.

With a Gaussian q, a unit Gaussian prior and a decoder that gives ln p(x|z) with its derivative, the draw, its weight, the
gradient by lambda and the clipped step are some forty operations. Autograd would take three times as many to the same numbers.
All of them can be differentiated once more, so that end-to-end training needs no double backward, and compiled as one.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bsvi.draws import Proposal, Weighed, posterior
from bsvi.examples import Nested, repeat
from bsvi.model import DiagonalGaussian, Model

Decode = Callable[..., tuple[Tensor, Any]]


class Stepped(NamedTuple):
    """One step: the weighed draws at lambda_i, the gradient there, and lambda and velocity after it."""

    weighed: Weighed
    gradient: Tensor
    lambda_: Tensor
    velocity: Tensor


class Ascent(NamedTuple):
    """How a velocity is made of gradients; ``tiny`` is added to norms, so that a gradient of zero has a derivative."""

    momentum: float
    max_norm: float
    tiny: float = 0.0

    def clip(self, gradient: Tensor) -> Tensor:
        """The gradient with mean and log-variance scaled to at most ``max_norm`` each."""
        if self.max_norm == math.inf:
            return gradient
        blocks = gradient.unflatten(-1, (2, -1))
        norm = torch.linalg.vector_norm(blocks, dim=-1, keepdim=True)
        return (blocks * (self.max_norm / (norm + self.tiny if self.tiny else norm)).clamp(max=1.0)).flatten(-2)


def draw_and_weigh(decode: Decode, lambda_: Tensor, eps: Tensor, beta: Any, slope: bool) -> tuple[Weighed, Tensor, Any]:
    """The weighed draws of q(z; lambda) by this noise (samples, batch, latent), z - mean, and the slope of ln p(x|z) by z."""
    mean, log_var = lambda_.chunk(2, -1)
    log_var = log_var.clamp(*DiagonalGaussian.RANGE)
    move = (0.5 * log_var).exp() * eps
    z = mean + move
    log_lik, slope_ = decode(z.flatten(0, 1), slope)
    log_lik = log_lik.view(z.shape[:-1])
    log_ratio = (eps.square() - z.square() + log_var).sum(-1)  # 2 (ln p(z) - ln q(z))
    return Weighed(z, log_lik, log_lik + (0.5 * beta) * log_ratio), move, slope_


def propose(decode: Decode, lambda_: Tensor, eps: Tensor, beta: Any) -> tuple[Weighed, Tensor]:
    """The weighed draws, and the gradient of each one's ln w by lambda, finite (Alg. 1, l.6-8). Weight zero steers nothing."""
    weighed, move, slope = draw_and_weigh(decode, lambda_, eps, beta, slope=True)
    low, high = DiagonalGaussian.RANGE
    # d (ln w + beta ln q) / d z; along the draw d ln q / d log-variance = -1/2, and 0 where it is clamped
    by_mean = slope.view(move.shape) - beta * weighed.z
    log_var = lambda_.chunk(2, -1)[1]
    by_log_var = torch.where((log_var > low) & (log_var < high), (by_mean * move + beta) * 0.5, 0.0)
    zero = ~(weighed.log_w.detach().abs() < math.inf)
    gradient = torch.cat([by_mean, by_log_var], -1).masked_fill(zero[..., None], 0.0)
    return weighed, finite(gradient)


def take_step(
    decode: Decode, ascent: Ascent, lambda_: Tensor, velocity: Tensor, eps: Tensor, *, beta: Any, rate: Any
) -> Stepped:
    """One draw, its weight, and lambda + rate v with v <- momentum v + clip(g) (Alg. 1, l.6-9)."""
    weighed, gradient = propose(decode, lambda_, eps, beta)
    velocity = ascent.momentum * velocity + ascent.clip(gradient[0])
    return Stepped(weighed, gradient[0], lambda_ + rate * velocity, velocity)


def _step(function: Any, ascent: Ascent, *tensors: Tensor) -> Stepped:
    """``take_step`` with everything that changes as tensors, to be compiled."""
    lambda_, velocity, eps, beta, rate, *rest = tensors
    return take_step(lambda z, slope: function(z, slope, *rest), ascent, lambda_, velocity, eps, beta=beta, rate=rate)


def _weigh(function: Any, lambda_: Tensor, eps: Tensor, beta: Tensor, *tensors: Tensor) -> Weighed:
    return draw_and_weigh(lambda z, slope: function(z, slope, *tensors), lambda_, eps, beta, slope=False)[0]


def finite(gradient: Tensor) -> Tensor:
    """The gradient with non-finite entries replaced by zero: such a coordinate stays where it is."""
    return gradient.nan_to_num(0.0, 0.0, 0.0)


class DirectProposals:
    """Draws, weights, gradients and steps of a batch by functions of tensors, compiled where the decoder is.

    Args:
        decode: ln p(x|z), in float64, and its derivative by z, for rows of z; ``decode(z, slope=False)`` leaves the latter out.
        noise: standard normal numbers of shape (samples, batch, latent).
        beta: the weight of the KL term.
    """

    def __init__(self, decode: Decode, noise: Callable[[], Tensor], beta: float = 1.0) -> None:
        self.decode, self.noise, self.beta = decode, noise, beta
        self.settled: dict[Any, Callable[..., Any]] = {}
        self.numbers: dict[float, Tensor] = {}

    def weigh(self, lambda_: Tensor) -> Weighed:
        """The weighed draws of q(z; lambda) alone (Alg. 1, l.6-7)."""
        if not self.is_compiled:
            return draw_and_weigh(self.decode, lambda_, self.noise(), self.beta, slope=False)[0]
        return self._run(_weigh, (), lambda_, self.noise(), self._tensor(self.beta, lambda_))

    def __call__(self, lambda_: Tensor, share: Callable[[Tensor], Tensor] | None) -> tuple[Weighed, Tensor]:
        """The weighted draws, and the gradient of the examples' ELBOs by lambda, which is finite (Alg. 1, l.6-8).

        ``share`` says how much each draw steers; None: there is one draw per example. A draw of weight zero steers nothing.
        """
        weighed, gradient = propose(self.decode, lambda_, self.noise(), self.beta)
        if share is None:
            return weighed, gradient[0]
        some = share(weighed.log_w).masked_fill(~(weighed.log_w.abs() < math.inf), 0.0)
        return weighed, (some[..., None].to(gradient) * gradient).sum(0)

    def step(self, lambda_: Tensor, velocity: Tensor | None, ascent: Ascent, rate: Any) -> Stepped:
        """One draw, its weight and the clipped step, with ``rate`` a number or a tensor that may be learned."""
        if velocity is None:  # of the kind that those after it are, so that one compiled function serves all steps
            velocity = torch.zeros_like(lambda_).requires_grad_(lambda_.requires_grad and torch.is_grad_enabled())
        if not self.is_compiled:
            return take_step(self.decode, ascent, lambda_, velocity, self.noise(), beta=self.beta, rate=rate)
        beta, rate = self._tensor(self.beta, lambda_), self._tensor(rate, lambda_)
        return self._run(_step, (ascent,), lambda_, velocity, self.noise(), beta, rate)

    @property
    def is_compiled(self) -> bool:
        return getattr(self.decode, "compile_step", None) is not None

    @property
    def has_graphs(self) -> bool:
        """Whether values and slopes can be differentiated once more: a function of somebody's own may not keep its graph."""
        return hasattr(self.decode, "function")

    def _tensor(self, value: Any, like: Tensor) -> Tensor:
        """A number as a tensor, made once: compiled code takes a new number for a new kind of call."""
        if isinstance(value, Tensor):
            return value
        if value not in self.numbers:
            self.numbers[value] = torch.tensor(value, dtype=like.dtype, device=like.device)
        return self.numbers[value]

    def _run(self, step: Callable[..., Any], constants: tuple[Ascent, ...], *arguments: Tensor) -> Any:
        """The compiled step; which code that is gets asked once for all steps of a walk."""
        decode: Any = self.decode
        tensors = (*arguments, *decode.tensors)
        key = (step, torch.is_grad_enabled(), arguments[0].requires_grad)
        if key in self.settled:
            return self.settled[key](*tensors)
        compiled = decode.compile_step(step, decode.function, *constants)
        result = compiled(*tensors)
        self.settled[key] = compiled.settle(*tensors) if hasattr(compiled, "settle") else compiled
        return result


def find_direct(
    model: Model, x: Nested, lambda_: Tensor, samples: int, beta: float, graphs: bool = False
) -> DirectProposals | None:
    """Steps without autograd, where the model offers ``slopes`` (``VAE.slopes``) and q is a ``DiagonalGaussian``.

    With ``graphs`` what they depend on keeps its graph, for training end to end.
    """
    offered = getattr(model, "slopes", None)
    if offered is None or any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return None
    q = posterior(model, lambda_, x)
    stream, q = (q.stream, q.q) if isinstance(q, Proposal) else (None, q)
    with torch.set_grad_enabled(graphs):
        decode = offered(repeat(x, samples)) if type(q) is DiagonalGaussian else None
    if decode is None:
        return None
    shape = (samples, len(lambda_), lambda_.shape[-1] // 2)

    def noise() -> Tensor:
        return torch.randn(shape, dtype=lambda_.dtype, device=lambda_.device)

    return DirectProposals(decode, noise if stream is None else lambda: stream.draw(noise, samples), beta)


def find_lean(model: Model, x: Nested, lambda_: Tensor, beta: float) -> DirectProposals | None:
    """Steps of one draw whose graphs to theta may stay until backward, where these take next to no memory."""
    direct = find_direct(model, x, lambda_, 1, beta, graphs=True)
    return direct if direct is not None and getattr(direct.decode, "lean", False) else None
