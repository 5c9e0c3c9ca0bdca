"""The draws of one batch and their importance weights (Fig. 1)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bsvi.draws import Weighed, any_true, closed_form_kl, posterior
from bsvi.examples import Nested
from bsvi.model import Model, uses_x


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
    # whether the graphs that theta's rule asked for are there: the bound itself then reaches theta. None: if ln w has a graph
    kept: bool | None = None

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
            self.rows = [v.new_empty((self.proposals * self.samples, *v.shape[1:])) for v in weighed[:3]]
        self.lambda_[self.filled] = lambda_.detach()
        rows = slice(self.filled * self.samples, (self.filled + 1) * self.samples)
        for row, value in zip(self.rows, weighed[:3], strict=True):
            row[rows] = value.detach()
        if weighed.log_w.requires_grad:
            self.attached[self.filled] = weighed.log_w
        self.filled += 1

    @property
    def differentiable(self) -> bool:
        """Whether no attached graph leads through a weight of zero: its slope may be infinite, and 0 * inf spoils the rest."""
        return not self.attached or not any_true(~torch.isfinite(self.rows[2]))

    def trajectory(self, model: Model, x: Nested, beta: float) -> Trajectory:
        """The draws of all proposals; a weight that is not finite counts as zero."""
        z, log_lik, log_w = self.rows
        kl = (log_lik - log_w) / beta if beta > 0 else torch.full_like(log_w, math.nan)  # ln q(z) - ln p(z) of the draw
        with torch.no_grad():
            few = 1 if uses_x(model) else 16  # at a time: memory must not grow with k
            for i in range(0, self.proposals, few):
                closed = closed_form_kl(model, posterior(model, self.lambda_[i : i + few].flatten(0, 1), x), x)
                if closed is None:
                    break
                rows = slice(i * self.samples, (i + few) * self.samples)
                kl[rows] = closed.unflatten(0, (-1, kl.shape[1])).repeat_interleave(self.samples, 0)
        if self.attached:
            rows = log_w.split(self.samples)
            log_w = torch.cat([self.attached.get(i, row) for i, row in enumerate(rows)])
        log_w = torch.where(torch.isfinite(log_w), log_w, -math.inf)
        lambda_ = self.lambda_ if self.samples == 1 else self.lambda_.repeat_interleave(self.samples, 0)
        return Trajectory(lambda_, z, log_lik, kl, log_w, self.samples)
