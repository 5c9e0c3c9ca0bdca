"""Draw and weigh: z ~ q(z; lambda) and ln w = ln p(x|z) + beta (ln p(z) - ln q(z)) (Algorithm 1, l.4-7).

Everything that forms a weight is float32 or wider, whatever ``torch.autocast`` says; ln w itself is float64.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.checkpoint import checkpoint

from bsvi.examples import Nested, count, repeat, take
from bsvi.model import Model, Shape, call_with_x
from bsvi.parameters import find_trainable, freeze

T = TypeVar("T")
REDUCED = (torch.float16, torch.bfloat16)


@runtime_checkable
class NoiseSource(Protocol):
    """Where a ``Proposal`` takes its noise from."""

    def draw(self, sampler: Callable[[], T], rows: int) -> T:
        """What ``sampler`` draws, ``rows`` rows for every example, with the stream's noise."""


class Draw(NamedTuple):
    """``samples`` draws of one proposal q and their ln q; rows are draws."""

    z: Tensor  # (samples, batch, latent)
    log_q: Tensor  # (samples, batch)


class Weighed(NamedTuple):
    """``samples`` draws from one proposal q and their weights; rows are draws."""

    z: Tensor  # (samples, batch, latent)
    log_lik: Tensor  # (samples, batch): ln p(x|z)
    log_w: Tensor  # (samples, batch): ln p(x|z) + beta (ln p(z) - ln q(z))

    def detach(self) -> "Weighed":
        return Weighed(self.z.detach(), self.log_lik.detach(), self.log_w.detach())


def encode(model: Model, x: Nested) -> Tensor:
    """lambda_0 = f_phi(x) with its graph (Alg. 1, l.4)."""
    lambda_ = model.encode(x)
    if not isinstance(lambda_, Tensor):
        raise TypeError(
            f"the encoder must return one tensor (batch, 2 * latent), got {type(lambda_).__name__}; "
            "for a pair use torch.cat([mean, log_variance], dim=-1)"
        )
    if lambda_.ndim != 2 or lambda_.shape[0] != count(x):
        raise ValueError(
            f"the encoder must return (batch, parameters) with batch = {count(x)}, got {tuple(lambda_.shape)}; "
            "flatten it to mean and log-variance along the last axis"
        )
    if lambda_.dtype in REDUCED and not torch.is_autocast_enabled(lambda_.device.type):
        raise TypeError(
            f"the encoder returned {lambda_.dtype}, in which no weight can be trusted; keep the model in float32 and run "
            "it under torch.autocast"
        )
    return lambda_.float() if lambda_.dtype in REDUCED else lambda_


def posterior(model: Model, lambda_: Tensor, x: Nested) -> Distribution:
    """q(z; lambda), made in float32 or wider."""
    with full_precision():
        return call_with_x(model.posterior, lambda_, x)


def draw(q: Distribution, samples: int, batch: int) -> Draw:
    """``samples`` draws of each example's q, in float32 or wider; a family may offer both at once, as flows do."""
    if not q.has_rsample:
        raise TypeError(
            f"posterior(lambda_) gave {type(getattr(q, 'q', q)).__name__}, which cannot be reparameterised (has_rsample is "
            "False), and SVI needs its gradient; use a family with rsample, such as Normal, Gamma or RelaxedBernoulli"
        )
    with full_precision():
        z, log_q = rsample_and_log_prob(q, torch.Size((samples,)))
    if log_q.shape != (samples, batch):
        raise ValueError(
            f"posterior(lambda_) must have one log_prob per example, shape ({batch},), got {tuple(log_q.shape[1:])}; "
            "wrap it in torch.distributions.Independent(..., 1)"
        )
    return Draw(z, log_q)


def rsample_and_log_prob(q: Distribution, shape: Shape) -> tuple[Tensor, Tensor]:
    """A draw and its ln q: both at once where the family has a method of this name, as DiagonalGaussian and zuko's flows.

    A subclass that changes ``rsample`` or ``log_prob`` below that method is asked for both one by one.
    """
    if _offers(type(q), "rsample_and_log_prob", "rsample", "log_prob"):  # type: ignore[arg-type]
        return q.rsample_and_log_prob(shape)  # type: ignore[attr-defined]
    z = q.rsample(torch.Size(shape))
    return z, q.log_prob(z)


@cache
def _offers(family: type, name: str, *beside: str) -> bool:
    """Whether a class has this method, and no subclass has changed one of those ``beside`` it since."""

    def depth(name: str) -> int:
        return next((i for i, base in enumerate(family.__mro__) if name in vars(base)), len(family.__mro__))

    return depth(name) <= min(*map(depth, beside), len(family.__mro__) - 1)


def log_prior(model: Model, z: Tensor, x: Nested) -> Float[Tensor, " batch"]:
    """ln p(z), in float32 or wider; a conditional one needs a row of x for each of z."""
    with full_precision():
        return _per_example("log_prior(z)", call_with_x(model.log_prior, z, x), len(z))


def log_likelihood(model: Model, x: Nested, z: Tensor, recompute: bool = False) -> Float[Tensor, " batch"]:
    """ln p(x|z) in float64: at -2000 nats a float32 steps by 2.4e-4, and bfloat16 by 8."""
    decode = partial(checkpoint, model.log_lik, use_reentrant=False) if recompute else model.log_lik
    value = _per_example("the decoder, ln p(x|z),", decode(x, z), len(z))
    if value.dtype in REDUCED:
        raise TypeError(
            f"the decoder returned ln p(x|z) in {value.dtype}, which cannot hold it; sum in float32: "
            "log_prob.float().sum(-1)"
        )
    return value.double()


def weigh(
    model: Model, x: Nested, q: Distribution, samples: int = 1, beta: float = 1.0, recompute: bool = False
) -> Weighed:
    """Draw from q and weigh: ln w = ln p(x|z) + beta (ln p(z) - ln q(z)), one decoder call (Alg. 1, l.6-7)."""
    return weigh_draw(model, x, draw(q, samples, count(x)), beta, recompute)


def weigh_draw(model: Model, x: Nested, drawn: Draw, beta: float = 1.0, recompute: bool = False) -> Weighed:
    """The weights of draws, one decoder call (Alg. 1, l.7).

    Always the sampled ln q, never the closed-form KL: that would report more than ln p(x). With ``recompute`` the decoder's
    graph is not kept but made again in backward.
    """
    samples, batch = drawn.log_q.shape
    rows = drawn.z.flatten(0, 1)
    x = repeat(x, samples)
    prior = log_prior(model, rows, x)
    log_lik = log_likelihood(model, x, rows, recompute).view(samples, batch)
    log_ratio = prior.view(samples, batch) - drawn.log_q
    return Weighed(drawn.z, log_lik, log_lik + (log_ratio if beta == 1.0 else beta * log_ratio))


def without_zero_weights(
    model: Model, x: Nested, lambda_: Tensor, weighed: Weighed, beta: float, path_alone: bool = False
) -> Weighed:
    """The same weights with a graph that no draw of weight zero is part of: its 0 * inf would spoil every gradient.

    In the graph a draw with weight stands in for each of them, so that shapes stay as they are. This runs the decoder again,
    but only where a weight is not finite. With ``path_alone`` ln q leads to z and not to lambda.
    """
    bad = ~torch.isfinite(weighed.log_w)
    if not weighed.log_w.requires_grad or not any_true(bad):
        return weighed
    if bad.all():
        return weighed.detach()
    samples, batch = bad.shape
    row = torch.arange(samples * batch, device=bad.device)
    row = torch.where(bad.flatten(), (~bad).flatten().long().argmax(), row)  # a row that has weight
    z, lambda_ = weighed.z.flatten(0, 1)[row], (lambda_.detach() if path_alone else lambda_)[row % batch]
    rows = take(x, row % batch)
    with full_precision(), freeze(find_trainable(model) if path_alone else []):
        log_q = call_with_x(model.posterior, lambda_, rows).log_prob(z)
    again = weigh_draw(model, rows, Draw(z[None], log_q[None]), beta)
    log_w = torch.where(bad, weighed.log_w.detach(), again.log_w.view(samples, batch))
    return Weighed(weighed.z, torch.where(bad, weighed.log_lik.detach(), again.log_lik.view(samples, batch)), log_w)


def closed_form_kl(model: Model, q: Distribution, x: Nested) -> Tensor | None:
    """KL(q || p(z)) where the model knows it, else None."""
    kl = getattr(model, "kl", None)
    with full_precision():
        return None if kl is None else call_with_x(kl, q, x)


class Proposal(Distribution):
    """q(z; lambda) as it is, except that its draws take their noise from a stream."""

    arg_constraints = {}  # noqa: RUF012 (torch's own attribute)

    def __init__(self, q: Distribution, stream: NoiseSource) -> None:
        self.q, self.stream, self.has_rsample, self.blocks = q, stream, q.has_rsample, getattr(q, "blocks", 1)
        super().__init__(q.batch_shape, q.event_shape, validate_args=False)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = torch.Size(sample_shape)
        return self.stream.draw(lambda: self.q.rsample(shape), shape.numel())

    def rsample_and_log_prob(self, sample_shape: Shape = ()) -> tuple[Tensor, Tensor]:
        """A draw and its ln q."""
        shape = torch.Size(sample_shape)
        return self.stream.draw(lambda: rsample_and_log_prob(self.q, shape), shape.numel())

    def log_prob(self, value: Tensor) -> Tensor:
        return self.q.log_prob(value)


def full_precision() -> AbstractContextManager[Any]:
    """Within this context ``torch.autocast`` does nothing: weights are sums that reduced precision would spoil."""
    enabled = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    if not enabled:
        return _AS_IT_IS
    stack = ExitStack()
    for device in enabled:
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


_AS_IT_IS = nullcontext()


def each_block(gradient: Tensor, q: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient by lambda with ``function`` of each of q's blocks, of shape (batch, blocks, size), in its place.

    ``q.blocks`` is a number of equal blocks (mean and log-variance: 2), or a dict of their names and sizes.
    """
    blocks = getattr(q, "blocks", 1)
    if isinstance(blocks, int):
        return function(gradient.unflatten(-1, (blocks, -1))).flatten(-2)
    parts = gradient.split(list(blocks.values()), dim=-1)
    return torch.cat([function(part.unsqueeze(-2)).squeeze(-2) for part in parts], dim=-1)


def any_true(condition: Tensor) -> bool:
    """Whether any entry is true; never on the meta device, where operations are counted without numbers."""
    return not condition.is_meta and bool(condition.any())


def _per_example(what: str, value: Tensor, batch: int) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (batch,):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{what} must have one value per example, shape ({batch},), got {got}; "
            "sum over pixels or latents, not over the batch"
        )
    return value
