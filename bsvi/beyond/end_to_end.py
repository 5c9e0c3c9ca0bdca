"""Refinement that is trained itself: SVI's walk without the stop-gradient, and iterative inference.

Theorem 1 never needed the stop: lambda_i is a function of x and *earlier* draws, whether or not it is differentiated. So for
fixed noise the bound is one function of theta, phi and the refinement's own parameters, and all follow its derivative.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsvi.beyond.directly import find_steps, walk_directly
from bsvi.beyond.second_order import FixedNoise, gradient_by_differences, run_again_in_backward
from bsvi.beyond.twice import is_tried, try_twice
from bsvi.beyond.updates import Rates
from bsvi.draws import Weighed, closed_form_kl, draw, encode, posterior, weigh_draw, without_zero_weights
from bsvi.examples import Nested
from bsvi.graphs import GraphSize, list_shared_tensors
from bsvi.model import Model
from bsvi.parameters import find_reached_parameters, find_trainable, freeze
from bsvi.refinement import SVI, Options, Refined, finite
from bsvi.system.native import rest
from bsvi.trajectory import Buffer


class Taken(NamedTuple):
    """One step: the weighted draws at lambda_i, lambda_{i+1}, what the update remembers, and the raw gradient at lambda_i."""

    weighed: Weighed
    lambda_: Tensor
    state: Tensor
    gradient: Tensor


class EndToEnd(nn.Module):
    """A walk of ``svi.steps`` steps that is trained as a whole by the bound of its own draws.

    lambda_{i+1} = update(lambda_i, g_i) with g_i = d ln w(z_i; lambda_i) / d lambda_i. With pi = Last and the rates of
    SVI this is SA-VAE (Kim et al. 2018), with a uniform or learned pi end-to-end BSVI.

    Args:
        svi: steps, momentum, clipping, samples and double sampling of the walk.
        update: the module that makes the step, ``Rates`` by default; its parameters are trained with the objective's.
        second_order: whether the bound's derivative goes through g_i too. Without it g_i counts as a constant.
        finite_difference: take second-order products from differences of gradients, for decoders that cannot be
            differentiated twice.
        encoder: whether phi follows the whole bound; else ln w_0 alone, as in Algorithm 1.
        recompute: whether each step runs again in backward, so that one step's graph is alive at a time; None: where
            the graphs would take more memory than theta's rule allows.

    Example:
        >>> from bsvi import SVI, VAE, Objective
        >>> model = VAE(nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> objective = Objective(EndToEnd(SVI(steps=2)))
        >>> objective(model, torch.zeros(7, 3)).loss.backward()
        >>> objective.refinement.update.log_rates.grad.shape
        torch.Size([2, 1])
    """

    recompute: bool | None = None

    def __init__(
        self,
        svi: SVI,
        update: nn.Module | None = None,
        *,
        second_order: bool = True,
        finite_difference: bool = False,
        encoder: bool = True,
        recompute: bool | None = None,
    ) -> None:
        super().__init__()
        self.svi = svi
        self.update: Any = Rates(svi) if update is None else update
        self.second_order, self.finite_difference, self.encoder = second_order, finite_difference, encoder
        if recompute is not None:  # else it is no part of what a store is asked for by
            self.recompute = recompute

    def forward(
        self, model: Model, x: Nested, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined:
        if self.recompute is not None:
            budget = 0.0 if self.recompute else math.inf
        lambda_0 = encode(model, x)
        start = lambda_0 if self.encoder else lambda_0.detach()
        theta = find_trainable(model) if attach == 0 else []  # to freeze, where theta's rule gives it another gradient
        buffer, slope = self.unroll(model, x, start, beta, theta, budget)
        phi = torch.zeros(len(lambda_0), dtype=torch.float64, device=lambda_0.device)
        if not self.encoder:
            phi = phi + ((lambda_0 - lambda_0.detach()) * finite(slope.detach())).sum(-1)
        trajectory = replace(buffer.trajectory(model, x, beta), kept=not theta)
        return Refined(trajectory, phi)

    def unroll(
        self, model: Model, x: Nested, lambda_: Tensor, beta: float, theta: list[Tensor], budget: float
    ) -> tuple[Buffer, Tensor]:
        """The k + 1 weighted proposals, and the gradient at the first."""
        if (direct := walk_directly(self, model, x, lambda_, beta, theta=theta, budget=budget)) is not None:
            return direct
        steps, training = self.svi.steps, torch.is_grad_enabled()
        buffer, state = Buffer(steps + 1, self.svi.samples), self.update.begin(lambda_)
        recompute, parameters = False, list[Tensor]()

        def take(i: int, lambda_: Tensor, state: Tensor) -> Taken:
            return self.take(i, model, x, lambda_, state, beta, theta=theta)

        for i in range(steps + 1):
            with GraphSize(i == 0 and training and budget < math.inf, list_shared_tensors(model, x)) as size:
                taken = (
                    Taken(*run_again_in_backward(take, i, lambda_, state, parameters))
                    if recompute
                    else take(i, lambda_, state)
                )
            if i == 0:
                slope, recompute = taken.gradient, (steps + 1) * size.bytes > budget
                if recompute:
                    parameters = [
                        *find_reached_parameters(model, taken.weighed.log_w, taken.lambda_),
                        *self.update.parameters(),
                    ]
            buffer.add(lambda_, taken.weighed)
            lambda_, state = taken.lambda_, taken.state
        return buffer, slope

    def take(
        self, i: int, model: Model, x: Nested, lambda_: Tensor, state: Tensor, beta: float, *, theta: list[Tensor]
    ) -> Taken:
        """Draw and weigh at lambda_i, and step to lambda_{i+1}; at the last proposal no step follows."""
        training, svi = torch.is_grad_enabled(), self.svi
        if i == svi.steps:
            drawn = draw(posterior(model, lambda_, x), svi.samples, len(lambda_))
            with freeze(theta):
                weighed = without_zero_weights(model, x, lambda_, weigh_draw(model, x, drawn, beta), beta)
            return Taken(weighed, lambda_, state, torch.zeros_like(lambda_))
        twice = training and self.second_order and not self.finite_difference
        with torch.enable_grad(), uncompiled() if twice else nullcontext():
            at = lambda_ if lambda_.requires_grad and training else lambda_.detach().requires_grad_()
            q = posterior(model, at, x)
            frozen_now = theta if training else find_trainable(model)

            def steer(at: Tensor, q: Any = None) -> tuple[Weighed, Tensor]:
                q = posterior(model, at, x) if q is None else q
                drawn = draw(q, svi.samples, len(lambda_))
                with freeze(frozen_now):
                    weighed = without_zero_weights(model, x, at, weigh_draw(model, x, drawn, beta), beta)
                return weighed, self.value(model, x, q, weighed, beta)

            def value_at(at: Tensor) -> Tensor:
                return steer(at)[1]

            again = training and self.second_order and (self.finite_difference or not is_tried(self))
            noise = FixedNoise(lambda_.device) if again else None
            weighed, value = steer(at, q)
            if svi.double_sampling:  # section 4.2: another draw makes the step
                noise = None if noise is None else FixedNoise(lambda_.device)
                value = steer(at, q)[1]
            if noise is None or twice:
                g = gradient(value, at, twice, training)
            else:
                g = gradient_by_differences(value_at, noise, value, at, find_reached_parameters(model, value))
            if noise is not None and twice:
                try_twice(self, value_at, noise, value, g, at, parameters=lambda: find_reached_parameters(model, value))
        if not training:
            weighed, g = weighed.detach(), g.detach()
        elif not self.second_order:
            g = g.detach()
        following, state = self.update(i, lambda_, finite(g), state, q)
        return Taken(weighed, following, state, g)

    def value(self, model: Model, x: Nested, q: Any, weighed: Weighed, beta: float) -> Tensor:
        """What the step climbs, (batch,): the examples' ELBOs, by the sampled or the closed-form KL."""
        log_w = weighed.log_w.detach()
        share = torch.where(log_w.abs() < math.inf, self.svi.share(log_w), 0.0)
        climbed = weighed.log_w
        if self.svi.closed_form_kl:
            kl = closed_form_kl(model, q, x)
            if kl is None:
                raise ValueError(f"closed_form_kl: no KL is known for {type(q).__name__} and this prior; leave it off")
            climbed = weighed.log_lik - beta * kl
        return (share * torch.where(share == 0, 0.0, climbed)).sum(0)

    @torch.no_grad()
    def last(self, model: Model, x: Nested, lambda_: Tensor) -> Tensor:
        """lambda_k, the end of the walk from lambda_0: where the trained inference ends. It costs k decoder passes."""
        state = self.update.begin(lambda_)
        if (direct := find_steps(self, model, x, lambda_, 1.0)) is not None:
            for i in range(self.svi.steps):
                *_, lambda_, state = direct.step(lambda_, state, self.update.ascent, self.update.rate(i, lambda_))
            return lambda_
        for i in range(self.svi.steps):
            _, lambda_, state, _ = self.take(i, model, x, lambda_, state, 1.0, theta=[])
        return lambda_

    @property
    def steps(self) -> int:
        return self.svi.steps

    @property
    def samples(self) -> int:
        return self.svi.samples

    @property
    def rows(self) -> int:
        """Weighted draws per example."""
        return self.svi.rows

    def take_options(self, options: Options) -> tuple["EndToEnd", Options]:
        """The same refinement for a lambda of this width, with rates that are learned or not; all options are its own."""
        changed = EndToEnd(
            self.svi,
            self.update.change(options.width, options.learned_rates),
            second_order=self.second_order,
            finite_difference=options.finite_difference or self.finite_difference,
            encoder=self.encoder,
            recompute=self.recompute if options.recompute is None else options.recompute,
        )
        return changed, Options()

    @property
    def decoder_calls(self) -> int:
        """Passes of the decoder per example, counting each row of a batched call."""
        again = 2 * self.svi.samples * self.svi.steps if self.finite_difference and self.second_order else 0
        return self.svi.decoder_calls + again

    def extra_repr(self) -> str:
        return f"{self.svi}, second_order={self.second_order}, recompute={self.recompute}"


def gradient(value: Tensor, at: Tensor, twice: bool, retain: bool) -> Tensor:
    """d value / d lambda, with its own graph if it is differentiated ``twice``; zero where nothing depends on lambda."""
    if not value.requires_grad:
        return torch.zeros_like(at)
    (g,) = torch.autograd.grad(value.sum(), at, create_graph=twice, retain_graph=retain, allow_unused=True)
    return torch.zeros_like(at) if g is None else g


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within this context what was compiled runs as it was written: compiled code cannot be differentiated twice."""
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    with stance, rest():
        yield
