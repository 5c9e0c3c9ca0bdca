"""ln p(x | z) with its derivative by z, as a function of tensors alone: what a decoder offers that knows its own derivative."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Slopes:
    """ln p(x | z) of one batch, (rows,) in float64, and its derivative by z.

    Args:
        function: of z, whether the derivative is asked for, and ``tensors``. Both results may have graphs.
        tensors: the decoder's weights and what the likelihood took of x.
        compile_step: makes one compiled function of a step around ``function``; None where nothing is compiled.
        lean: whether backward makes again what it needs, so that a graph takes next to no memory until then.

    Example:
        >>> import torch
        >>> slopes = Slopes(lambda z, slope, c: (-(z - c).square().sum(-1), 2 * (c - z) if slope else None), (torch.ones(2),))
        >>> slopes(torch.zeros(1, 2))
        (tensor([-2.]), tensor([[2., 2.]]))
    """

    function: Callable[..., tuple[Tensor, Tensor | None]]
    tensors: tuple[Tensor, ...]
    compile_step: Callable[..., Callable[..., Any]] | None = None
    lean: bool = False

    def __call__(self, z: Tensor, slope: bool = True) -> tuple[Tensor, Tensor | None]:
        return self.function(z, slope, *self.tensors)
