"""Ancestral sampling from a PixelCNN with cached activations: a pixel costs what it needs, not a whole pass.

The vertical stack of row r needs only the rows above, so it is computed once per row, one row per layer. Within the row
only the horizontal stack runs, one column per layer: each layer keeps its inputs of the row, and a pixel adds one column.
All of it is the sum that `PixelCNN.params` computes, taken in another order (checked in tests/nets/test_sampling.py).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from bsvi.nets.gate import gate

if TYPE_CHECKING:
    from bsvi.nets.pixelcnn import GatedLayer, PixelCNN

Progress = Callable[[int, int], None]  # (rows done, rows)


class _Row:
    """One layer's caches: its vertical inputs of all rows so far, and its horizontal inputs of the current row."""

    def __init__(self, layer: "GatedLayer", batch: int, height: int, width: int) -> None:
        weight, self.layer, self.reach = layer.vertical.weight, layer, layer.reach
        self.inputs = weight.shape[1]
        rows, columns = self.reach + 1 + height, width + 2 * self.reach
        self.v = weight.new_zeros(batch, self.inputs, rows, columns)  # padded as in GatedLayer.above
        self.h = weight.new_zeros(batch, (self.reach + width) * self.inputs)  # padded on the left; column-major
        outputs = weight.shape[0]
        # (taps * inputs, outputs): one matrix product per pixel, without copying the window
        self.left = layer.horizontal.weight[:, :, 0].permute(2, 1, 0).reshape(-1, outputs).contiguous()
        self.out = layer.residual.weight[:, :, 0, 0].t().contiguous()
        self.beside = weight.new_empty(width, batch, outputs)

    def above(self, row: int) -> Tensor:
        """Return the vertical stack's value of one row, before its gate, and keep what the row's pixels need of it."""
        layer = self.layer
        above = F.conv2d(self.v[:, :, row : row + self.reach + 1], layer.vertical.weight, layer.vertical.bias)
        self.beside = (layer.cross(above)[:, :, 0] + layer.horizontal.bias[:, None]).permute(2, 0, 1).contiguous()
        return above

    def put_row(self, row: int, values: Tensor) -> None:
        """Keep one row of vertical inputs, (batch, inputs, 1, width)."""
        at = row + self.reach + 1
        self.v[:, :, at : at + 1, self.reach : self.v.shape[3] - self.reach] = values

    def column(self, column: int) -> Tensor:
        """Return the (batch, inputs) horizontal inputs of one column: a view to write into."""
        at = (self.reach + column) * self.inputs
        return self.h[:, at : at + self.inputs]

    def pixel(self, column: int) -> Tensor:
        """Return the horizontal stack's value of one pixel, (batch, channels)."""
        window = self.h[:, column * self.inputs : (column + self.reach + 1) * self.inputs]
        first, second = torch.addmm(self.beside[column], window, self.left).chunk(2, dim=1)
        out = torch.addmm(self.layer.residual.bias, torch.tanh(first) * torch.sigmoid(second), self.out)
        return out if self.layer.first else out.add_(self.column(column))


@torch.no_grad()
def ancestral_sample(
    decoder: "PixelCNN",
    z: Float[Tensor, "batch latent"],
    noise: Float[Tensor, "batch 1 height width"],
    progress: Progress | None = None,
) -> tuple[Float[Tensor, "batch 1 height width"], Float[Tensor, "batch 1 height width"]]:
    """Return (images, the likelihood parameters they were drawn from) for uniform noise, pixel by pixel.

    >>> from bsvi.nets import PixelCNN
    >>> decoder = PixelCNN(latent=2, image=(4, 5), channels=4, kernels=(3, 3))
    >>> z, noise = torch.randn(3, 2), torch.rand(3, 1, 4, 5)
    >>> x, logits = ancestral_sample(decoder, z, noise)
    >>> torch.allclose(logits, decoder.params(x, z), atol=1e-5)
    True
    """
    batch, (height, width) = z.shape[0], decoder.image
    maps = decoder.z_maps(z)
    x, params = torch.zeros_like(noise), torch.zeros_like(noise)
    layers = [_Row(layer, batch, height, width) for layer in decoder.layers]
    head, bias = decoder.head.weight[0, :, 0, 0], decoder.head.bias
    with _shown(progress) as report:
        for row in range(height):
            for index, layer in enumerate(layers):
                above = layer.above(row)
                if index + 1 < len(layers):
                    layers[index + 1].put_row(row, gate(above))
            first = layers[0]
            for column in range(width):
                first.column(column)[:, 1:] = maps[:, :, row, column]
                if column:
                    first.column(column)[:, 0] = x[:, 0, row, column - 1]
                for layer, following in pairwise(layers):
                    following.column(column).copy_(layer.pixel(column))
                params[:, 0, row, column] = layers[-1].pixel(column) @ head + bias
                here = (slice(None), 0, row, column)
                x[here] = decoder.likelihood.sample(params[here], noise[here])  # type: ignore[operator]
            first.put_row(row, torch.cat([x[:, :, row : row + 1], maps[:, :, row : row + 1]], dim=1))
            report(row + 1, height)
    return x, params


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """Give the caller's own callback, or a bar on a terminal, or nothing."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda done, rows: None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sampling rows", total=None)
        yield lambda done, rows: bar.update(task, completed=done, total=rows)
