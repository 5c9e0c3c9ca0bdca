"""The draws of one batch and their importance weights (Fig. 1)."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.checkpoint import checkpoint

from bsvi.model import Model


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

    @property
    def nonfinite(self) -> int:
        """How many weights were not finite and count as zero."""
        return int(torch.isinf(self.log_w).sum())

    def per_proposal(self) -> Float[Tensor, "proposals batch"]:
        """ln w_i of each proposal q_i; the first row estimates SVI-0 (the amortized ELBO), the last SVI-k."""
        grouped = self.log_w.unflatten(0, (-1, self.samples))
        return torch.logsumexp(grouped, dim=1) - math.log(self.samples)


def weigh(
    model: Model, x: Tensor, q: Distribution, samples: int = 1, beta: float = 1.0, recompute: bool = False
) -> Weighed:
    """Draw from q and weigh: ln w = ln p(x|z) + beta (ln p(z) - ln q(z)), one decoder call (Alg. 1, l.6-7).

    Always the sampled ln q, never the closed-form KL: that would report more than ln p(x). With ``recompute`` the decoder's
    graph is not kept but made again in backward.
    """
    batch = x.shape[0]
    if not q.has_rsample:
        raise TypeError(
            f"posterior(lambda_) gave {type(getattr(q, 'q', q)).__name__}, which cannot be reparameterised (has_rsample is "
            "False), and SVI needs its gradient; use a family with rsample, such as Normal, Gamma or RelaxedBernoulli"
        )
    z = q.rsample(torch.Size((samples,)))
    log_q = q.log_prob(z)
    if log_q.shape != (samples, batch):
        raise ValueError(
            f"posterior(lambda_) must have one log_prob per example, shape ({batch},), got {tuple(log_q.shape[1:])}; "
            "wrap it in torch.distributions.Independent(..., 1)"
        )
    rows = z.flatten(0, 1)
    log_p = _per_example("log_prior(z)", model.log_prior(rows), samples * batch)
    decode = partial(checkpoint, model.log_lik, use_reentrant=False) if recompute else model.log_lik
    log_lik = _per_example("the decoder, ln p(x|z),", decode(repeat(x, samples), rows), samples * batch)
    log_lik = log_lik.view(samples, batch).double()  # at -2000 nats a float32 steps by 2.4e-4
    log_ratio = log_p.view(samples, batch) - log_q
    return Weighed(z, log_lik, log_lik + (log_ratio if beta == 1.0 else beta * log_ratio))


class GraphSize:
    """Counts the bytes that autograd keeps for backward of what runs inside, where ``measured`` says so."""

    def __init__(self, measured: bool) -> None:
        self.bytes, self._storages = 0, set[int]()
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
    return lambda_


def closed_form_kl(model: Model, q: Distribution) -> Tensor | None:
    """KL(q || p(z)) where the model knows it, else None."""
    kl = getattr(model, "kl", None)
    return None if kl is None else kl(q)


class Buffer:
    """The paper's buffer: keeps the draws of each proposal as they come, in memory that is set aside at the first one.

    (Tensors kept from step to step would lie between the decoder's freed activations, and the heap would grow with k.)
    """

    def __init__(self, proposals: int, samples: int) -> None:
        self.proposals, self.samples, self.filled = proposals, samples, 0
        self.attached: list[Tensor] = []  # ln w of the last proposals, where they keep their graph to theta

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
            self.attached.append(weighed.log_w)
        self.filled += 1

    def trajectory(self, model: Model, beta: float) -> Trajectory:
        """The draws of all proposals; a weight that is not finite counts as zero."""
        z, log_lik, log_w = self.rows
        kl = (log_lik - log_w) / beta if beta > 0 else torch.full_like(log_w, math.nan)  # ln q(z) - ln p(z) of the draw
        with torch.no_grad():
            for i in range(0, self.proposals, 16):  # a few at a time: memory must not grow with k
                closed = closed_form_kl(model, model.posterior(self.lambda_[i : i + 16].flatten(0, 1)))
                if closed is None:
                    break
                rows = slice(i * self.samples, (i + 16) * self.samples)
                kl[rows] = closed.unflatten(0, (-1, kl.shape[1])).repeat_interleave(self.samples, 0)
        if self.attached:
            log_w = torch.cat([log_w[: len(log_w) - len(self.attached) * self.samples], *self.attached])
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
