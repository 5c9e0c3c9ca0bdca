"""ln p(x | z) of a small PixelCNN and its derivative by z in C++: without graphs, or with one that can be differentiated.

A refinement that is trained itself needs the slope's own derivatives. Double backward through the layers takes three times as
long as one pass for both: values and their tangents go forward together, and so do the derivatives by both on the way back.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bsvi.nets.likelihoods import weigh_bits, weigh_levels
from bsvi.nets.native import NativeStacks, count_threads, find_address
from bsvi.nets.slopes import Slopes


class Terms(NamedTuple):
    """ln p(x | params) = constant + sum over pixels of linear params - softplus(first) - softplus(second).

    ``first`` and ``second`` are offset + scale params; without an offset the first is 0, and there is no second.
    """

    linear: Tensor | None = None
    first: Tensor | None = None
    second: Tensor | None = None
    scale: Tensor | None = None  # of params in the first; in the second it is negative
    constant: Tensor | float = 0.0

    @property
    def scales(self) -> tuple[ctypes.c_double, ctypes.c_double]:
        scale = 1.0 if self.scale is None else float(self.scale)
        return ctypes.c_double(scale), ctypes.c_double(0.0 if self.scale is None else -scale)


TERMS: dict[Any, Callable[..., Terms]] = {
    weigh_bits: lambda x: Terms(linear=x.contiguous()),
    weigh_levels: lambda above, below, inverse, middle: Terms(
        None, above.contiguous(), below.contiguous(), inverse, middle
    ),
}


def find_slopes(stacks: NativeStacks, x: Tensor) -> "NativeSlopes | Slopes | None":
    """ln p(x | z) and its derivative by z as a function of z; None where x or the likelihood is none for C++.

    Where graphs are recorded both results have one: for a refinement that is trained itself.
    """
    decoder = stacks.decoder
    prepare = getattr(decoder.likelihood, "prepare", None)
    prepared = prepare(x.flatten(1)) if prepare is not None and x.shape[1:] == (1, *decoder.image) else None
    if prepared is None or prepared[0] not in TERMS or not stacks.fits(x, decoder.from_z.weight):
        return None
    terms, x = TERMS[prepared[0]](*prepared[1]), x.detach().contiguous()
    if torch.is_grad_enabled():
        return Slopes(partial(weigh_with_graphs, stacks, x, terms), (), lean=True)
    return NativeSlopes(stacks, x, terms)


class NativeSlopes:
    """ln p(x | z) of one batch, (rows,) in float64, and its derivative by z, without graphs: for steps that need no others."""

    def __init__(self, stacks: NativeStacks, x: Tensor, terms: Terms) -> None:
        self.stacks, self.x, self.terms = stacks, x, terms
        self.flat = torch.cat([tensor.detach().reshape(-1) for tensor in stacks.list_theta()])

    @torch.no_grad()
    def __call__(self, z: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        decoder, terms, batch = self.stacks.decoder, self.terms, len(z)
        maps = decoder.z_maps(z).contiguous()
        values = torch.empty(batch, dtype=torch.float64)
        of_maps = torch.empty_like(maps) if slope else None
        tensors = (self.x, maps, self.flat, terms.linear, terms.first, terms.second)
        self.stacks.library.run_likelihood(
            ctypes.c_long(batch),
            *map(find_address, tensors),
            *terms.scales,
            find_address(values),
            find_address(of_maps),
            count_threads(batch),
        )
        by_z = None if of_maps is None else of_maps.flatten(1) @ decoder.from_z.weight
        return values + terms.constant, by_z


def weigh_with_graphs(
    stacks: NativeStacks, x: Tensor, terms: Terms, z: Tensor, slope: bool
) -> tuple[Tensor, Tensor | None]:
    """ln p(x | z) and its derivative by z with graphs to z, to theta and to the likelihood's parameters."""
    decoder = stacks.decoder
    if not slope:
        return decoder.log_lik(x, z), None
    values, of_maps = _Twice.apply(
        stacks, x, terms.linear, decoder.z_maps(z).contiguous(), *terms[1:4], *stacks.list_theta()
    )
    return values + terms.constant, of_maps.flatten(1) @ decoder.from_z.weight


class _Twice(torch.autograd.Function):
    """ln p(x | maps) but for its constant and the derivative by the maps, which can be differentiated once more."""

    @staticmethod
    def forward(ctx: Any, stacks: NativeStacks, x: Tensor, linear: Tensor | None, maps: Tensor, *tensors: Any) -> Any:
        terms, theta = Terms(linear, *tensors[:3]), tensors[3:]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in theta])
        values, of_maps = torch.empty(len(x), dtype=torch.float64), torch.empty_like(maps)
        used = map(find_address, (x, maps, flat, *terms[:3]))
        stacks.library.run_likelihood(
            ctypes.c_long(len(x)),
            *used,
            *terms.scales,
            find_address(values),
            find_address(of_maps),
            count_threads(len(x)),
        )
        ctx.save_for_backward(x, maps, flat, *terms[:4])
        ctx.library, ctx.shapes = stacks.library, [tensor.shape for tensor in theta]
        ctx.set_materialize_grads(False)  # of a value alone: half of the work
        return values, of_maps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor | None, direction: Tensor | None) -> tuple[Tensor | None, ...]:
        x, maps, flat, *parts = ctx.saved_tensors
        terms, along = Terms(*parts), None if direction is None else direction.contiguous()
        by_value = maps.new_zeros(len(x), dtype=torch.float64) if by_value is None else by_value.contiguous()
        params, of_maps, of_theta = (torch.empty_like(tensor) for tensor in (x, maps, flat))
        moving = torch.zeros_like(x)
        used = map(find_address, (x, maps, along, flat, *terms[:3]))
        made = map(find_address, (by_value, params, moving, of_maps, of_theta))
        ctx.library.run_twice(ctypes.c_long(len(x)), *used, *terms.scales, *made, count_threads(len(x)))
        of_terms: list[Tensor | None] = [None] * 3
        if any(ctx.needs_input_grad[4:7]):
            of_terms = differentiate_terms(terms, params.flatten(1), moving.flatten(1), by_value)
        sizes = [shape.numel() for shape in ctx.shapes]
        of_layers = (part.view(shape) for part, shape in zip(of_theta.split(sizes), ctx.shapes, strict=True))
        return None, None, None, of_maps, *of_terms, *of_layers


def differentiate_terms(terms: Terms, params: Tensor, moving: Tensor, by_value: Tensor) -> list[Tensor | None]:
    """The derivatives by both offsets and the scale: of ln p(x | params) and of its slope along ``moving``."""
    with torch.enable_grad():
        first, second, scale = inputs = [part.detach().requires_grad_() for part in terms[1:4] if part is not None]
        above, below = first + scale * params, second - scale * params
        value = -(F.softplus(above) + F.softplus(below)).sum(1, dtype=torch.float64)
        slope = scale * (torch.sigmoid(below) - torch.sigmoid(above))
        total = (by_value * value).sum() + (slope * moving).sum(dtype=torch.float64)
    return list(torch.autograd.grad(total, inputs))
