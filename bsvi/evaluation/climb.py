"""The best q of every example: a climb of the ELBO, or of the bound of many draws, that ends at an optimum."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bsvi.evaluation.evaluate import tally_draws
from bsvi.evaluation.noise import KeyedModel
from bsvi.examples import Nested
from bsvi.model import Model
from bsvi.refinement import SVI
from bsvi.tables.streams import find_streams

CLIMB, AGAIN, CHOOSE = find_streams("gap", "climb", "again", "choose")


class _Moments(NamedTuple):
    step: int
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Climb(SVI):
    """SVI's walk with Adam and a rate that falls to zero (half a cosine), so that it ends at an optimum, not around it.

    >>> Climb(steps=100).lr
    0.1
    """

    steps: int = 500
    lr: float = 0.1  # Adam's steps are about this long in mean and log-variance, whatever the gradient's size
    max_grad_norm: float = math.inf
    samples: int = 8  # a gradient of less noise; the rows of one decoder call

    def ascend(self, lambda_: Tensor, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            state = _Moments(0, torch.zeros_like(lambda_), torch.zeros_like(lambda_))
        step = state.step + 1
        first = 0.9 * state.first + 0.1 * gradient
        second = 0.99 * state.second + 0.01 * gradient.square()
        rate = self.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / self.steps))
        move = (first / (1 - 0.9**step)) / ((second / (1 - 0.99**step)).sqrt() + 1e-8)
        return lambda_ + rate * move, _Moments(step, first, second)


@dataclass(frozen=True)
class Widen(Climb):
    """The same climb on the bound of all ``samples`` draws in place of their ELBO.

    The best q for the ELBO is narrower than the posterior and its weights have heavy tails; the best q for the bound is
    not, so ln p(x) is estimated with it.
    """

    samples: int = 16

    def share(self, log_w: Tensor) -> Tensor:
        return torch.softmax(log_w, dim=0)


def find_best_lambda(
    model: Model, x: Nested, ids: Tensor, lambda_0: Tensor, climb: SVI, seed: int, *, draws: int, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """The best of lambda_0, the end of the climb and that of a second, shorter one; and what the second one gained.

    Compared on draws of their own. A second climb that gains anything says that the first was too short.
    """
    again = replace(climb, steps=max(1, climb.steps // 4), lr=climb.lr / 2)
    first = walk_to_end(climb, KeyedModel(model, seed, CLIMB, ids), x, lambda_0)
    second = walk_to_end(again, KeyedModel(model, seed, AGAIN, ids), x, first)
    ends, count = torch.stack([lambda_0, first, second]), (min(draws, 100),)
    elbo = torch.stack(
        [tally_draws(KeyedModel(model, seed, CHOOSE, ids), x, end, count, chunk).mean_log() for end in ends]
    )
    chosen = ends[elbo.argmax(0), torch.arange(len(lambda_0), device=lambda_0.device)]
    return chosen, elbo[2] - elbo[1]


def walk_to_end(svi: SVI, model: Model, x: Nested, lambda_: Tensor) -> Tensor:
    for step in svi.walk(model, x, lambda_):
        lambda_ = step.lambda_
    return lambda_


def name_columns(lambda_: Tensor, widths: set[int]) -> dict[str, Tensor]:
    """lambda's columns by name, as a store keeps them; ValueError where ``widths``, those met before, has another width."""
    widths.add(lambda_.shape[1])
    if len(widths) > 1:
        raise ValueError(
            f"lambda has {' or '.join(map(str, sorted(widths)))} parameters, by the batch, and cannot be kept in one table; "
            "pad all batches to one length"
        )
    return {f"lambda_{i}": column for i, column in enumerate(lambda_.unbind(-1))}


def gather_lambda(columns: Mapping[str, np.ndarray]) -> Float64[np.ndarray, "examples parameters"]:
    """What ``name_columns`` named, in order; ValueError where there is none."""
    names = sorted((name for name in columns if name.startswith("lambda_")), key=lambda name: int(name[7:]))
    if not names:
        raise ValueError("the best q was not kept; give amortization_gap keep_lambda=True")
    return np.stack([columns[name] for name in names], -1)
