"""The draws of one batch and their importance weights (Fig. 1)."""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.checkpoint import checkpoint

from bsvi.model import Model, rsample_and_log_prob

REDUCED = (torch.float16, torch.bfloat16)


class Weighed(NamedTuple):
    """``samples`` draws from one proposal q and their weights; rows are draws."""

    z: Tensor  # (samples, batch, latent)
    log_lik: Tensor  # (samples, batch): ln p(x|z)
    log_w: Tensor  # (samples, batch): ln p(x|z) + beta (ln p(z) - ln q(z))

    def detach(self) -> "Weighed":
        return Weighed(*(value.detach() for value in self))


@dataclass(frozen=True)
class Trajectory:
    """The weighted draws (z_i, w_i) of a batch, in the order in which they were drawn; the first axis is draws.

    With ``samples`` = m > 1 every proposal gives m rows, each with the buffer weight pi_i / m: w_i is their average.
    """

    lambda_: Float[Tensor, "draws batch parameters"]
    z: Float[Tensor, "draws batch *latent"]
    log_lik: Float[Tensor, "draws batch"]
    kl: Float[Tensor, "draws batch"]  # closed form where the family has one, else ln q(z) - ln p(z) of the draw
    log_w: Float[Tensor, "draws batch"]  # float64; -inf where it was not finite
    samples: int = 1
    kept: bool = False  # whether the graphs that theta's rule asked for are there: the bound itself then reaches theta

    @property
    def nonfinite(self) -> int:
        """How many weights were not finite and count as zero."""
        return int(torch.isinf(self.log_w).sum())

    def per_proposal(self) -> Float[Tensor, "proposals batch"]:
        """ln w_i of each proposal q_i, where w_i is the average of its m weights.

        With m = 1 the first row estimates SVI-0, the amortized ELBO, and the last SVI-k. With m > 1 they are the IWAE-m
        bounds of the first and the last q, which lie above the ELBOs: those are the averages of ``log_w`` itself.
        """
        grouped = self.log_w.unflatten(0, (-1, self.samples))
        return torch.logsumexp(grouped, dim=1) - math.log(self.samples)


class Draw(NamedTuple):
    """``samples`` draws of one proposal q and their ln q; rows are draws."""

    z: Tensor  # (samples, batch, latent)
    log_q: Tensor  # (samples, batch)


def weigh(
    model: Model, x: Tensor, q: Distribution, samples: int = 1, beta: float = 1.0, recompute: bool = False
) -> Weighed:
    """Draw from q and weigh: ln w = ln p(x|z) + beta (ln p(z) - ln q(z)), one decoder call (Alg. 1, l.6-7)."""
    return weigh_draw(model, x, draw(q, samples, len(x)), beta, recompute)


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


def weigh_draw(model: Model, x: Tensor, drawn: Draw, beta: float = 1.0, recompute: bool = False) -> Weighed:
    """The weights of draws, one decoder call (Alg. 1, l.7).

    Always the sampled ln q, never the closed-form KL: that would report more than ln p(x). With ``recompute`` the decoder's
    graph is not kept but made again in backward.
    """
    samples, batch = drawn.log_q.shape
    rows = drawn.z.flatten(0, 1)
    prior = log_prior(model, rows)
    log_lik = log_likelihood(model, repeat(x, samples), rows, recompute).view(samples, batch)
    log_ratio = prior.view(samples, batch) - drawn.log_q
    return Weighed(drawn.z, log_lik, log_lik + (log_ratio if beta == 1.0 else beta * log_ratio))


def log_likelihood(model: Model, x: Tensor, z: Tensor, recompute: bool = False) -> Float[Tensor, " batch"]:
    """ln p(x|z) in float64: at -2000 nats a float32 steps by 2.4e-4, and bfloat16 by 8."""
    decode = partial(checkpoint, model.log_lik, use_reentrant=False) if recompute else model.log_lik
    value = _per_example("the decoder, ln p(x|z),", decode(x, z), len(z))
    if value.dtype in REDUCED:
        raise TypeError(
            f"the decoder returned ln p(x|z) in {value.dtype}, which cannot hold it; sum in float32: "
            "log_prob.float().sum(-1)"
        )
    return value.double()


def log_prior(model: Model, z: Tensor) -> Float[Tensor, " batch"]:
    """ln p(z), in float32 or wider."""
    with full_precision():
        return _per_example("log_prior(z)", model.log_prior(z), len(z))


def posterior(model: Model, lambda_: Tensor) -> Distribution:
    """q(z; lambda), made in float32 or wider."""
    with full_precision():
        return model.posterior(lambda_)


def full_precision() -> AbstractContextManager[Any]:
    """Within this context ``torch.autocast`` does nothing: weights are sums that reduced precision would spoil."""
    stack = ExitStack()
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def without_zero_weights(model: Model, x: Tensor, lambda_: Tensor, weighed: Weighed, beta: float) -> Weighed:
    """The same weights with a graph that no draw of weight zero is part of: its 0 * inf would spoil every gradient.

    In the graph a draw with weight stands in for each of them, so that shapes stay as they are. This runs the decoder again,
    but only where a weight is not finite.
    """
    bad = ~torch.isfinite(weighed.log_w)
    if not weighed.log_w.requires_grad or not any_true(bad):
        return weighed
    if bad.all():
        return weighed.detach()
    samples, batch = bad.shape
    row = torch.arange(samples * batch, device=x.device)
    row = torch.where(bad.flatten(), (~bad).flatten().long().argmax(), row)  # a row that has weight
    z, lambda_ = weighed.z.flatten(0, 1)[row], lambda_[row % batch]
    with full_precision():
        log_q = model.posterior(lambda_).log_prob(z)
    again = weigh_draw(model, x[row % batch], Draw(z[None], log_q[None]), beta)
    log_w = torch.where(bad, weighed.log_w.detach(), again.log_w.view(samples, batch))
    return Weighed(weighed.z, torch.where(bad, weighed.log_lik.detach(), again.log_lik.view(samples, batch)), log_w)


def any_true(condition: Tensor) -> bool:
    """Whether any entry is true; never on the meta device, where operations are counted without numbers."""
    return not condition.is_meta and bool(condition.any())


class GraphSize:
    """Counts the bytes that autograd keeps for backward of what runs inside, where ``measured`` says so.

    ``shared`` are tensors that every draw's graph holds, the decoder's weights above all: they are there once.
    """

    def __init__(self, measured: bool, shared: Iterable[Tensor] = ()) -> None:
        self.bytes = 0
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in shared} if measured else set[int]()
        self._hooks = (
            torch.autograd.graph.saved_tensors_hooks(self._count, lambda saved: saved) if measured else nullcontext()
        )

    def _count(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in self._storages:  # views of one tensor are kept once
            self._storages.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return saved

    def __enter__(self) -> "GraphSize":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


def held_once(model: object, x: Tensor) -> Iterator[Tensor]:
    """What the graphs of all draws hold in common: the batch, the parameters and the buffers."""
    yield x
    for name in ("parameters", "buffers"):
        tensors = getattr(model, name, None)
        yield from tensors() if callable(tensors) else ()


def repeat(x: Tensor, samples: int) -> Tensor:
    """The batch ``samples`` times over along its first axis."""
    return x if samples == 1 else x.expand(samples, *x.shape).flatten(0, 1)


def encode(model: Model, x: Tensor) -> Tensor:
    """lambda_0 = f_phi(x) with its graph (Alg. 1, l.4)."""
    lambda_ = model.encode(x)
    if not isinstance(lambda_, Tensor):
        raise TypeError(
            f"the encoder must return one tensor (batch, 2 * latent), got {type(lambda_).__name__}; "
            "for a pair use torch.cat([mean, log_variance], dim=-1)"
        )
    if lambda_.ndim != 2 or lambda_.shape[0] != x.shape[0]:
        raise ValueError(
            f"the encoder must return (batch, parameters) with batch = {x.shape[0]}, got {tuple(lambda_.shape)}; "
            "flatten it to mean and log-variance along the last axis"
        )
    if lambda_.dtype in REDUCED and not torch.is_autocast_enabled(lambda_.device.type):
        raise TypeError(
            f"the encoder returned {lambda_.dtype}, in which no weight can be trusted; keep the model in float32 and run "
            "it under torch.autocast"
        )
    return lambda_.float() if lambda_.dtype in REDUCED else lambda_


def closed_form_kl(model: Model, q: Distribution) -> Tensor | None:
    """KL(q || p(z)) where the model knows it, else None."""
    kl = getattr(model, "kl", None)
    with full_precision():
        return None if kl is None else kl(q)


class Buffer:
    """The paper's buffer: keeps the draws of each proposal as they come, in memory that is set aside at the first one.

    (Tensors kept from step to step would lie between the decoder's freed activations, and the heap would grow with k.)
    """

    def __init__(self, proposals: int, samples: int) -> None:
        self.proposals, self.samples, self.filled = proposals, samples, 0
        self.attached: dict[int, Tensor] = {}  # ln w of the proposals that keep their graph

    def __len__(self) -> int:
        return self.filled

    def add(self, lambda_: Tensor, weighed: Weighed) -> None:
        """Copy one proposal and its draws into the buffer."""
        if not self.filled:
            self.lambda_ = lambda_.new_empty((self.proposals, *lambda_.shape))
            self.rows = [v.new_empty((self.proposals * self.samples, *v.shape[1:])) for v in weighed]
        self.lambda_[self.filled] = lambda_.detach()
        rows = slice(self.filled * self.samples, (self.filled + 1) * self.samples)
        for row, value in zip(self.rows, weighed, strict=True):
            row[rows] = value.detach()
        if weighed.log_w.requires_grad:
            self.attached[self.filled] = weighed.log_w
        self.filled += 1

    @property
    def finite(self) -> bool:
        """Whether every weight is finite."""
        return not any_true(~torch.isfinite(self.rows[2]))

    def trajectory(self, model: Model, beta: float) -> Trajectory:
        """The draws of all proposals; a weight that is not finite counts as zero."""
        z, log_lik, log_w = self.rows
        kl = (log_lik - log_w) / beta if beta > 0 else torch.full_like(log_w, math.nan)  # ln q(z) - ln p(z) of the draw
        with torch.no_grad():
            for i in range(0, self.proposals, 16):  # a few at a time: memory must not grow with k
                closed = closed_form_kl(model, posterior(model, self.lambda_[i : i + 16].flatten(0, 1)))
                if closed is None:
                    break
                sixteen = slice(i * self.samples, (i + 16) * self.samples)
                kl[sixteen] = closed.unflatten(0, (-1, kl.shape[1])).repeat_interleave(self.samples, 0)
        if self.attached:
            rows = log_w.split(self.samples)
            log_w = torch.cat([self.attached.get(i, row) for i, row in enumerate(rows)])
        log_w = torch.where(torch.isfinite(log_w), log_w, -math.inf)
        lambda_ = self.lambda_ if self.samples == 1 else self.lambda_.repeat_interleave(self.samples, 0)
        return Trajectory(lambda_, z, log_lik, kl, log_w, self.samples)


def _per_example(what: str, value: Tensor, batch: int) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != (batch,):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(
            f"{what} must have one value per example, shape ({batch},), got {got}; "
            "sum over pixels or latents, not over the batch"
        )
    return value
