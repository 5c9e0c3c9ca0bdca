"""End-to-end walks by steps that are functions of tensors: no double backward, and compiled where the decoder is."""

from typing import Any

import torch
from torch import Tensor

from bsvi.beyond.second_order import FixedNoise
from bsvi.beyond.updates import Rates
from bsvi.direct import DirectProposals, find_direct
from bsvi.draws import any_true
from bsvi.examples import Nested
from bsvi.model import Model
from bsvi.parameters import freeze
from bsvi.trajectory import Buffer

NUMBERS = 4  # that a graph keeps for each unit and pixel of a step, at most


def walk_directly(
    walk: Any, model: Model, x: Nested, lambda_: Tensor, beta: float, *, theta: list[Tensor], budget: float
) -> tuple[Buffer, Tensor] | None:
    """The k + 1 weighed proposals of an ``EndToEnd`` and the gradient at the first, by functions of tensors; or None.

    None where the model does not know its slope, for a walk that is not the plain one, and where its graphs would take more
    than ``budget`` bytes. A weight that is not finite would spoil every gradient: the walk is then left to autograd, from
    the same noise.
    """
    training = torch.is_grad_enabled()
    with freeze(theta):
        direct = find_steps(walk, model, x, lambda_, beta)
        if direct is None or (training and (walk.steps + 1) * count_bytes(direct, lambda_) > budget):
            return None
        noise = FixedNoise(lambda_.device)
        buffer, velocity, first = Buffer(walk.steps + 1, 1), None, torch.empty(0)
        for i in range(walk.steps):
            stepped = direct.step(lambda_, velocity, walk.update.ascent, walk.update.rate(i, lambda_))
            buffer.add(lambda_, stepped.weighed)
            first = stepped.gradient if i == 0 else first
            lambda_, velocity = stepped.lambda_, stepped.velocity
        buffer.add(lambda_, direct.weigh(lambda_))
    if training and any_true(~torch.isfinite(buffer.rows[2])):
        noise.put(noise.states)
        return None
    return buffer, first


def find_steps(walk: Any, model: Model, x: Nested, lambda_: Tensor, beta: float) -> DirectProposals | None:
    """The steps of this walk as functions of tensors, where it is SVI's own with rates and the model knows its slope."""
    plain = walk.svi.is_plain and not walk.svi.closed_form_kl and type(walk.update) is Rates
    if not plain or walk.finite_difference or (torch.is_grad_enabled() and not walk.second_order):
        return None
    direct = find_direct(model, x, lambda_, 1, beta, graphs=torch.is_grad_enabled())
    return direct if direct is not None and (direct.has_graphs or not torch.is_grad_enabled()) else None


def count_bytes(direct: DirectProposals, lambda_: Tensor) -> int:
    """About how much the graph of one step takes, from above."""
    decode: Any = direct.decode
    units = sum(tensor.shape[-1] for tensor in getattr(decode, "tensors", ()) if tensor.ndim) + 2 * lambda_.shape[-1]
    return NUMBERS * units * len(lambda_) * lambda_.element_size()
