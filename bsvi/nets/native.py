"""The stacks of a small PixelCNN on a CPU as two functions in C++ (pixelcnn.cpp): forward, and the derivatives.

A PixelCNN of 8 or 16 channels is many small operations, each of which reads and writes the whole batch. Here an image goes
through all layers while it is in the cache: a refinement pass takes less than half of the compiled one's time.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bsvi.system.native import NativeError, is_resting, load_library

SOURCE = Path(__file__).with_name("pixelcnn.cpp")
MOST_MAPS = 8  # of z: the first layer's derivative by them is one vector
CLOSE = 1e-3  # of the trial: a mistake of a compiler is larger, rounding is 1e-5


class NativeStacks:
    """``params`` of one PixelCNN from x and the maps made of z, compiled for its sizes.

    Args:
        decoder: its layers are read at every call.

    Raises:
        NativeError: where it cannot be compiled, or does not give the numbers of the layers themselves.
    """

    def __init__(self, decoder: Any) -> None:
        kernels = [2 * layer.reach + 1 for layer in decoder.layers]
        sizes = {"HEIGHT": decoder.image[0], "WIDTH": decoder.image[1], "MAPS": decoder.maps}
        sizes |= {"CHANNELS": decoder.head.in_channels, "BORDER": max(kernels) // 2 + 1}
        macros = {name: str(value) for name, value in sizes.items()} | {"KERNELS": ",".join(map(str, kernels))}
        self.decoder, self.library = decoder, load_library(SOURCE, macros)
        self.library.count_kept.restype = self.library.count_theta.restype = ctypes.c_long
        self.compare()

    def list_theta(self) -> list[Tensor]:
        """Weights and biases in the order of pixelcnn.cpp."""
        layers = [
            conv for one in self.decoder.layers for conv in (one.vertical, one.cross, one.horizontal, one.residual)
        ]
        return [tensor for conv in [*layers, self.decoder.head] for tensor in (conv.weight, conv.bias)]

    def fits(self, x: Tensor, maps: Tensor) -> bool:
        """Whether this call is one for the C++ functions: single precision on a CPU, and no derivative by x."""
        if is_resting() or torch.compiler.is_compiling() or x.requires_grad:
            return False
        theta = self.list_theta()
        plain = all(isinstance(tensor, nn.Parameter) for tensor in theta)
        same = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in (x, maps, *theta))
        return plain and same

    def __call__(self, x: Tensor, maps: Tensor) -> Tensor:
        return _Stacks.apply(self, x.contiguous(), maps.contiguous(), *self.list_theta())

    def compare(self) -> None:
        """Raise NativeError unless an image's parameters and their derivatives are those of the layers."""
        decoder, generator = self.decoder, torch.Generator().manual_seed(0)
        x = torch.rand(1, 1, *decoder.image, generator=generator)
        maps = torch.randn(1, decoder.maps, *decoder.image, generator=generator).requires_grad_()
        if not self.fits(x, maps):
            raise NativeError("the networks are not in single precision on a CPU")
        with torch.enable_grad():
            one, other = self(x, maps), decoder.run_layers(x, maps)
            slopes = [torch.autograd.grad(params.sum(), maps)[0] for params in (one, other)]
        for mine, theirs in ((one, other), slopes):
            if not (mine - theirs).abs().max() <= CLOSE * theirs.abs().max().clamp(min=1e-3):
                raise NativeError("the compiled PixelCNN does not give the numbers of its layers")


class _Stacks(torch.autograd.Function):
    """Differentiable twice: where a derivative wants a graph of its own, the layers themselves are run."""

    @staticmethod
    def forward(ctx: Any, stacks: NativeStacks, x: Tensor, maps: Tensor, *theta: Tensor) -> Tensor:
        library, batch = stacks.library, len(x)
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in theta])
        every = any(ctx.needs_input_grad[3:])
        kept = None
        if every or ctx.needs_input_grad[2]:
            kept = flat.new_empty(batch * library.count_kept(int(every)))
        params = torch.empty_like(x)
        library.run_forward(
            ctypes.c_long(batch), *map(find_address, (x, maps, flat, params, kept)), int(every), count_threads(batch)
        )
        ctx.save_for_backward(x, maps, flat, kept)
        ctx.stacks, ctx.theta, ctx.every = stacks, theta, every
        return params

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return None, None, *differentiate_layers(ctx, slope)
        x, maps, flat, kept = ctx.saved_tensors
        of_maps = torch.empty_like(maps)
        of_theta = torch.empty_like(flat) if ctx.every else None
        used = (x, maps, flat, kept, slope.contiguous(), of_maps, of_theta)  # held until the call is over
        ctx.stacks.library.run_backward(ctypes.c_long(len(x)), *map(find_address, used), count_threads(len(x)))
        if of_theta is None:
            return None, None, of_maps, *[None] * len(ctx.theta)
        parts = of_theta.split([tensor.numel() for tensor in ctx.theta])
        return None, None, of_maps, *(part.view(p.shape) for part, p in zip(parts, ctx.theta, strict=True))


def differentiate_layers(ctx: Any, slope: Tensor) -> list[Tensor | None]:
    """The derivatives by the maps and theta with a graph, by the layers themselves."""
    x, maps, *_ = ctx.saved_tensors
    if any(now is not then for now, then in zip(ctx.stacks.list_theta(), ctx.theta, strict=True)):
        raise RuntimeError(
            "the decoder's parameters were exchanged before backward; leave the decoder uncompiled for this"
        )
    inputs = [tensor for tensor in (maps, *ctx.theta) if tensor.requires_grad]
    params = ctx.stacks.decoder.run_layers(x, maps)
    found = iter(torch.autograd.grad(params, inputs, slope, create_graph=True, allow_unused=True))
    return [next(found) if tensor.requires_grad else None for tensor in (maps, *ctx.theta)]


def find_address(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def count_threads(batch: int) -> int:
    return max(1, min(torch.get_num_threads(), batch))
