"""What a refinement is, and the one that refines nothing: draws of the encoder's own q(z; lambda_0)."""

import math
import operator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol, SupportsIndex, runtime_checkable

import torch
from torch import Tensor

from bsvi.beyond.dreg import path_alone, square_weights
from bsvi.draws import draw, encode, posterior, weigh, weigh_draw, without_zero_weights
from bsvi.examples import Nested
from bsvi.model import Model
from bsvi.trajectory import Buffer, Trajectory


class Refined(NamedTuple):
    """A trajectory, and a term (batch,) that is zero in value and carries phi's gradient."""

    trajectory: Trajectory
    phi: Tensor


@runtime_checkable
class Refinement(Protocol):
    """Proposes weighted draws. ``attach`` says how many of the last proposals keep their graph to theta (None: all), unless
    these graphs would take more than ``budget`` bytes."""

    def __call__(
        self, model: Model, x: Nested, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined: ...


@dataclass(frozen=True)
class Options:
    """What ``bsvi.objective`` may be asked for beyond the method's row; its arguments of these names explain them."""

    recompute: bool | None = None
    width: int | None = None
    learned_rates: bool | None = None
    finite_difference: bool = False


@runtime_checkable
class TakesOptions(Protocol):
    """A refinement that has options of its own."""

    def take_options(self, options: Options) -> tuple[Refinement, Options]:
        """The refinement with the options that are its own, and those that it leaves to others."""


@dataclass(frozen=True)
class Amortized:
    """``draws`` independent draws from the encoder's own q(z; lambda_0): the VAE with one, IWAE with more.

    lambda_0 stays attached, so phi follows the bound itself. With ``recompute`` the decoder runs draw by draw, and again in
    backward, so that one draw's graph is alive at a time in place of all. With ``dreg`` phi gets the same gradient with less
    noise, sum_i r_i^2 (d ln w_i / d z_i) (d z_i / d phi): DReG (Tucker et al. 2018), and with one draw STL (Roeder et al. 2017).
    """

    draws: int = 1
    recompute: bool = False
    dreg: bool = False
    needs_graphs: ClassVar[bool] = True  # phi follows them, so theta's rule must not do without

    def __post_init__(self) -> None:
        vars(self).update(draws=whole("draws", self.draws))
        if self.draws < 1:
            raise ValueError(f"Amortized needs draws >= 1, got {self.draws}; one draw is the VAE, k' draws are IWAE-k'")

    def __call__(
        self, model: Model, x: Nested, beta: float = 1.0, attach: int | None = None, budget: float = math.inf
    ) -> Refined:
        lambda_ = encode(model, x)
        q = posterior(model, lambda_, x)
        calls, samples = (self.draws, 1) if self.recompute else (1, self.draws)
        buffer, drawn = Buffer(calls, samples), list[Tensor]()
        for _ in range(calls):
            if self.dreg:
                weighed = weigh_draw(
                    model, x, path_alone(model, x, lambda_, draw(q, samples, len(lambda_))), beta, self.recompute
                )
            else:
                weighed = weigh(model, x, q, samples, beta, self.recompute)
            drawn.append(weighed.z)
            buffer.add(lambda_, without_zero_weights(model, x, lambda_, weighed, beta, self.dreg))
        trajectory = replace(buffer.trajectory(model, x, beta), samples=1, kept=True)  # every draw is a row of its own
        if self.dreg and self.draws > 1 and torch.is_grad_enabled():
            square_weights(drawn, trajectory.log_w, beta)
        return Refined(trajectory, torch.zeros(len(lambda_), dtype=torch.float64, device=lambda_.device))

    def take_options(self, options: Options) -> tuple["Amortized", Options]:
        """Itself with ``recompute``, which needs more than one draw."""
        recompute = bool(options.recompute) and self.draws > 1
        return replace(self, recompute=recompute), replace(options, recompute=None)

    @property
    def rows(self) -> int:
        """Weighted draws per example."""
        return self.draws

    @property
    def decoder_calls(self) -> int:
        """Passes of the decoder per example, counting each row of a batched call."""
        return self.draws * (2 if self.recompute else 1)


def whole(name: str, value: SupportsIndex) -> int:
    """The value as an int: a whole number of Python, numpy or torch."""
    try:
        return operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}; give an int") from None
