"""What training through a gradient needs: the same noise again, steps made again in backward, products by differences."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class FixedNoise:
    """The random state and the precision at one moment; within this context they are as they were then, afterwards as before."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.states = device, self.now(device)
        self.autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS}

    @staticmethod
    def now(device: torch.device) -> list[Tensor]:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def put(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if states[1:]:
            torch.cuda.set_rng_state(states[1], self.device)

    def __enter__(self) -> "FixedNoise":
        self.before = self.now(self.device)
        self.contexts = ExitStack()
        for kind, (on, dtype) in self.autocast.items():
            if on:
                self.contexts.enter_context(torch.autocast(kind, dtype))
        self.put(self.states)
        return self

    def __exit__(self, *error: Any) -> None:
        self.put(self.before)
        self.contexts.close()


def run_again_in_backward(
    take: Callable[[int, Tensor, Tensor], Any], i: int, lambda_: Tensor, state: Tensor, parameters: list[Tensor]
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """What ``take(i, lambda_, state)`` returns, with a graph that is not kept but made again in backward, by the same noise.

    Args:
        parameters: all that the step depends on besides lambda and state.
    """
    kind: list[Any] = []
    *parts, following, state, gradient = _Again.apply(take, i, kind, lambda_, state, *parameters)
    weighed = kind[0](*parts)
    return weighed.detach()._replace(log_w=weighed.log_w), following, state, gradient.detach()


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, take: Any, i: int, kind: list[type], lambda_: Tensor, state: Tensor, *parameters: Tensor
    ) -> Any:
        ctx.take, ctx.i, ctx.noise = take, i, FixedNoise(lambda_.device)
        ctx.save_for_backward(lambda_, state, *parameters)
        ctx.set_materialize_grads(False)
        weighed, following, state, gradient = take(i, lambda_, state)  # forward runs without a graph
        kind.append(type(weighed))
        outputs = (*weighed, following, state, gradient)
        return tuple(value.clone() if value is lambda_ else value for value in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:
        lambda_, state, *parameters = ctx.saved_tensors
        lambda_, state = (value.detach().requires_grad_() for value in (lambda_, state))
        with torch.enable_grad(), ctx.noise:
            weighed, following, memory, gradient = ctx.take(ctx.i, lambda_, state)
        made = zip((*weighed, following, memory, gradient), slopes, strict=True)
        ends = [(value, slope) for value, slope in made if slope is not None and value.requires_grad]
        outputs, sides = [value for value, _ in ends], [slope for _, slope in ends]
        found = torch.autograd.grad(outputs, [lambda_, state, *parameters], sides, allow_unused=True)
        return None, None, None, *found


def gradient_by_differences(
    value_at: Callable[[Tensor], Tensor], noise: FixedNoise, value: Tensor, at: Tensor, parameters: list[Tensor]
) -> Tensor:
    """g = d value / d lambda, whose own derivative is taken from central differences of gradients (Kim et al. 2018).

    In backward, with v the bound's slope by g and e its direction, H v = |v| (grad(lambda + h e) - grad(lambda - h e)) / (2 h),
    by lambda and by the parameters alike: two more passes of the decoder, and nothing is differentiated twice.

    Args:
        value_at: each example's value at a lambda, with the noise that comes next.
        noise: the noise of ``value``.
        parameters: all that the value depends on besides lambda.
    """
    (g,) = torch.autograd.grad(value.sum(), at, retain_graph=True)
    return _Differences.apply(value_at, noise, g, at, *parameters)


class _Differences(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value_at: Any, noise: FixedNoise, g: Tensor, at: Tensor, *parameters: Tensor) -> Tensor:
        ctx.value_at, ctx.noise = value_at, noise
        ctx.save_for_backward(at, *parameters)
        return g.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        at, *parameters = ctx.saved_tensors
        v, at = slopes[0], at.detach()
        size = v.norm(dim=-1, keepdim=True)
        h = torch.finfo(at.dtype).eps ** (1 / 3) * (1 + at.square().mean(-1, keepdim=True).sqrt())
        away = h * v / size.clamp(min=torch.finfo(at.dtype).tiny)
        total: list[Tensor | None] = [None] * (1 + len(parameters))
        for sign in (1.0, -1.0):
            with torch.enable_grad(), ctx.noise:
                there = (at + sign * away).requires_grad_()
                value = (ctx.value_at(there) * (sign * size / (2 * h)).squeeze(-1)).sum()
            found = torch.autograd.grad(value, [there, *parameters], allow_unused=True)
            total = [b if a is None else a if b is None else a + b for a, b in zip(total, found, strict=True)]
        return None, None, None, *total


KINDS = ("cpu", "cuda")
