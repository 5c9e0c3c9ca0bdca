"""A proposal of Algorithm 1 (l.6-8) as one function of tensors, for models that know their slope by z.

With a Gaussian q, a unit Gaussian prior and a decoder that gives ln p(x|z) with its derivative, the draw, its weight and the
gradient by lambda are some twenty operations. Autograd would take three times as many to the same numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bsvi.draws import Proposal, Weighed, posterior
from bsvi.examples import Nested, repeat
from bsvi.model import DiagonalGaussian, Model

hardtanh_backward = torch.ops.aten.hardtanh_backward.grad_input
Decode = Callable[..., tuple[Tensor, Any]]


class DirectProposals:
    """Draws, weights and gradients of a batch without autograd.

    Args:
        decode: ln p(x|z), in float64, and its derivative by z, for rows of z; ``decode(z, slope=False)`` leaves the latter out.
        noise: standard normal numbers of shape (samples, batch, latent).
        beta: the weight of the KL term.
    """

    def __init__(self, decode: Decode, noise: Callable[[], Tensor], beta: float = 1.0) -> None:
        self.decode, self.noise, self.beta = decode, noise, beta

    @torch.no_grad()
    def weigh(self, lambda_: Tensor) -> Weighed:
        """The weighted draws of q(z; lambda) alone (Alg. 1, l.6-7)."""
        return self._weigh(lambda_, slope=False)[0]

    @torch.no_grad()
    def __call__(self, lambda_: Tensor, share: Callable[[Tensor], Tensor] | None) -> tuple[Weighed, Tensor]:
        """The weighted draws, and the gradient of the examples' ELBOs by lambda, which is finite (Alg. 1, l.6-8).

        ``share`` says how much each draw steers; None: there is one draw per example. A draw of weight zero steers nothing.
        """
        weighed, move, slope = self._weigh(lambda_, slope=True)
        gradient = lambda_.new_empty((*weighed.z.shape[:-1], 2, weighed.z.shape[-1]))
        by_mean, by_log_var = gradient.unbind(-2)
        # d (ln w + beta ln q) / d z; along the draw d ln q / d log-variance = -1/2, and 0 where it is clamped
        torch.sub(slope.view(move.shape), weighed.z, alpha=self.beta, out=by_mean)
        torch.mul(by_mean, move, out=by_log_var).add_(self.beta).mul_(0.5)
        log_var = lambda_.chunk(2, -1)[1].expand_as(move)
        hardtanh_backward(by_log_var, log_var, *DiagonalGaussian.RANGE, grad_input=by_log_var)
        gradient, zero = gradient.flatten(-2), ~(weighed.log_w.abs() < math.inf)
        gradient = gradient.masked_fill_(zero[..., None], 0.0).nan_to_num_(0.0, 0.0, 0.0)
        if share is None:
            return weighed, gradient[0]
        return weighed, (share(weighed.log_w).masked_fill(zero, 0.0)[..., None].to(gradient) * gradient).sum(0)

    def _weigh(self, lambda_: Tensor, slope: bool) -> tuple[Weighed, Tensor, Any]:
        mean, log_var = lambda_.chunk(2, -1)
        log_var, eps = log_var.clamp(*DiagonalGaussian.RANGE), self.noise()
        move = (0.5 * log_var).exp_() * eps
        z = mean + move
        log_lik, slope_ = self.decode(z.flatten(0, 1), slope)
        log_lik = log_lik.view(z.shape[:-1])
        log_ratio = (eps.square_() - z.square()).add_(log_var).sum(-1)  # 2 (ln p(z) - ln q(z))
        return Weighed(z, log_lik, torch.add(log_lik, log_ratio, alpha=0.5 * self.beta)), move, slope_


def find_direct(model: Model, x: Nested, lambda_: Tensor, samples: int, beta: float) -> DirectProposals | None:
    """Proposals without autograd, where the model offers ``slopes`` (``VAE.slopes``) and q is a ``DiagonalGaussian``."""
    offered = getattr(model, "slopes", None)
    if offered is None or any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        return None
    q = posterior(model, lambda_, x)
    stream, q = (q.stream, q.q) if isinstance(q, Proposal) else (None, q)
    decode = offered(repeat(x, samples)) if type(q) is DiagonalGaussian else None
    if decode is None:
        return None
    shape = (samples, len(lambda_), lambda_.shape[-1] // 2)

    def noise() -> Tensor:
        return torch.randn(shape, dtype=lambda_.dtype, device=lambda_.device)

    return DirectProposals(decode, noise if stream is None else lambda: stream.draw(noise, samples), beta)
