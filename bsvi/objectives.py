"""A refinement, a buffer weight, a bound and a rule for theta, combined to one scalar loss (Algorithm 1, l.12-16)."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bsvi.bounds import Bound, giwae
from bsvi.buffer_weights import Uniform
from bsvi.checks.trial import check_model, check_repeats
from bsvi.examples import Nested, check_axis, count, first, is_at_hand, spoilt
from bsvi.model import Model
from bsvi.refinement import Refinement
from bsvi.theta import AllDraws, ThetaRule
from bsvi.trajectory import Trajectory


@dataclass(frozen=True)
class Estimate:
    """What an objective returns for one batch.

    loss        scalar, ``-bound.mean()`` in value; ``backward()`` gives theta, phi and pi their own gradients
    bound       one bound per example, at most ln p(x) in expectation when beta is 1
    trajectory  the draws, their proposals and their weights
    log_pi      the buffer weight of each draw
    decoder_calls  passes of the decoder per example that it took, counting each row of a batched call
    """

    loss: Float[Tensor, ""]
    bound: Float[Tensor, " batch"]
    trajectory: Trajectory
    log_pi: Float[Tensor, " draws"]
    decoder_calls: int = 0


class Objective(nn.Module):
    """Any refinement with any buffer weight, theta rule and bound; ``bsvi.objective(name)`` makes the paper's eight.

    >>> from bsvi import SVI, VAE
    >>> model = VAE(nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
    >>> estimate = Objective(SVI(steps=5))(model, torch.zeros(7, 3))
    >>> estimate.bound.shape, estimate.trajectory.log_w.shape
    (torch.Size([7]), torch.Size([6, 7]))
    """

    def __init__(
        self,
        refinement: Refinement,
        buffer_weight: nn.Module | None = None,
        theta: ThetaRule | None = None,
        bound: Bound = giwae,
    ) -> None:
        super().__init__()
        self.refinement = refinement
        self.buffer_weight = Uniform() if buffer_weight is None else buffer_weight
        self.theta = AllDraws() if theta is None else theta
        self.bound = bound
        if getattr(refinement, "needs_graphs", False) and self.theta.attach == 0:
            rule, name = type(self.theta).__name__, type(refinement).__name__
            raise ValueError(f"{rule} goes with SVI; {name} keeps all its graphs for phi, so use AllDraws()")

    def forward(self, model: Model, x: Nested, beta: float = 1.0) -> Estimate:
        check_model(model)
        check_input(x, beta, model)
        trajectory, phi = self.refinement(model, x, beta, self.theta.attach, self.theta.budget)
        check_repeats(model, x, trajectory.z[0])
        log_pi = self.log_pi(trajectory)
        bound = self.bound(trajectory.log_w, log_pi)
        calls = getattr(self.refinement, "decoder_calls", len(trajectory.log_w))
        if not torch.is_grad_enabled():
            return Estimate(-bound.mean(), bound, trajectory, log_pi, calls)
        theta, more = self.theta.term(model, x, beta, trajectory, self.bound, log_pi)
        loss = -(bound.mean() + phi.mean() + theta)
        detached = replace(trajectory, log_w=trajectory.log_w.detach())
        return Estimate(loss, bound.detach(), detached, log_pi.detach(), calls + more)

    def log_pi(self, trajectory: Trajectory) -> Float[Tensor, " draws"]:
        """ln pi for each row of the trajectory: with m samples per proposal each row has pi_i / m."""
        log_w, m = trajectory.log_w, trajectory.samples
        log_pi = self.buffer_weight(len(log_w) // m).to(log_w)
        return log_pi if m == 1 else log_pi.repeat_interleave(m) - math.log(m)

    @property
    def decoder_calls(self) -> int:
        """Passes of the decoder per example and step, counting each row of a batched call, if graphs are kept as asked."""
        refinement: Any = self.refinement
        return refinement.decoder_calls + self.theta.decoder_calls(refinement.rows)

    def extra_repr(self) -> str:
        return f"{self.refinement}, theta={self.theta}, bound={getattr(self.bound, '__name__', self.bound)}"


class BadInput(ValueError):
    """x holds numbers that are not finite."""


def check_input(x: Nested, beta: float, model: object = None) -> None:
    """Raise, with what to do, on input from which no number could be trusted; a model may call NaN a missing value.

    An update on a GPU does not wait for this: NaN or infinity in x then shows in the loss, and ``bsvi.train`` says where.
    """
    check_axis(x)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "SVI needs gradients, which torch.inference_mode() forbids; use torch.no_grad() to evaluate an objective"
        )
    if not (math.isfinite(beta) and beta >= 0):
        raise ValueError(f"beta must be finite and at least 0, got {beta}; 1.0 gives a bound on ln p(x)")
    if torch.is_grad_enabled() and not is_at_hand(first(x)):
        return
    missing = getattr(model, "nan_is_missing", False)
    if (bad := spoilt(x, missing)) is not None:
        where = bad.nonzero().flatten().tolist()
        raise BadInput(
            f"x holds {'infinity' if missing else 'NaN or infinity'} in {len(where)} of {count(x)} examples (first at index "
            f"{where[0]}); clean the data"
            + ("" if missing else ", or give the model nan_is_missing=True if it leaves out what is NaN")
        )
