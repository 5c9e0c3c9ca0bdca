"""The gate of a gated PixelCNN, tanh(a) * sigmoid(b), written so that its backward pass keeps one tensor.

It can be differentiated twice, as end-to-end refinement does: the tensor that is kept is an output of its own.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx


class _Gate(torch.autograd.Function):
    """The eager path: one buffer [tanh(a), sigmoid(b)] is all that is kept between forward and backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, pre: Tensor, more: Tensor | None) -> tuple[Tensor, Tensor]:
        half = pre.shape[1] // 2
        kept = pre.clone() if more is None else pre + more
        # tanh(a) = 2 sigmoid(2a) - 1: one vectorised sigmoid over both halves is five times faster than tanh on a CPU
        first, second = kept[:, :half], kept[:, half:]
        first.mul_(2)
        kept.sigmoid_()
        first.mul_(2).sub_(1)
        ctx.save_for_backward(kept)
        ctx.set_materialize_grads(False)
        ctx.both = more is not None  # type: ignore[attr-defined]
        return first * second, kept

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        (kept,) = ctx.saved_tensors  # type: ignore[attr-defined]
        of_out, of_kept = grads
        half = kept.shape[1] // 2
        first, second = kept[:, :half], kept[:, half:]
        if of_out is not None and of_kept is None and not torch.is_grad_enabled():
            grad = torch.empty_like(kept)
            torch.ops.aten.tanh_backward.grad_input(of_out * second, first, grad_input=grad[:, :half])
            torch.ops.aten.sigmoid_backward.grad_input(of_out * first, second, grad_input=grad[:, half:])
        else:  # differentiated again: ``kept`` is a function of the input, and what it was used for has its own share
            slope = torch.zeros_like(kept) if of_kept is None else of_kept
            if of_out is not None:
                slope = slope + torch.cat([of_out * second, of_out * first], dim=1)
            grad = slope * torch.cat([1 - first.square(), second * (1 - second)], dim=1)
        return grad, grad if ctx.both else None  # type: ignore[attr-defined]


def gate(
    pre: Float[Tensor, "batch twice height width"], more: Float[Tensor, "batch twice height width"] | None = None
) -> Float[Tensor, "batch channels height width"]:
    """Return tanh(a) * sigmoid(b), where a and b are the halves of the channels of `pre` (plus `more`).

    >>> round(gate(torch.tensor([0.5, 0.0]).view(1, 2, 1, 1)).item(), 4)  # tanh(0.5) / 2
    0.2311
    """
    if pre.is_cpu and not torch.compiler.is_compiling():
        return _Gate.apply(pre, more)[0]
    first, second = (pre if more is None else pre + more).chunk(2, dim=1)  # here a compiler fuses what there is to fuse
    return (2 * torch.sigmoid(2 * first) - 1) * torch.sigmoid(second)
