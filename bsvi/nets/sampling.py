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

PixelProgress = Callable[[int, int], None]  # (rows done, rows)


class _LayerCache:
    """One layer's caches: its vertical inputs of all rows so far, and its horizontal inputs of the current row.

    The buffers stay where they are, so that every view of them is made once and a pixel costs four small operations per layer.
    """

    def __init__(self, layer: "GatedLayer", batch: int, height: int, width: int) -> None:
        weight, self.layer, self.reach = layer.vertical.weight, layer, layer.reach
        outputs, inputs = weight.shape[:2]
        channels, taps = outputs // 2, self.reach + 1
        rows, columns = taps + height, width + 2 * self.reach  # padded as in GatedLayer.above
        self.v = weight.new_zeros(batch, rows, columns, inputs).permute(0, 3, 1, 2)
        self.kernel = weight.contiguous(memory_format=torch.channels_last)
        h = weight.new_zeros(batch, (self.reach + width) * inputs)  # padded on the left, column after column
        self.windows = [h[:, at * inputs : (at + taps) * inputs] for at in range(width)]
        self.columns = [window[:, self.reach * inputs :] for window in self.windows]
        beside = weight.new_empty(width, batch, outputs)
        self.beside, self.beside_columns = beside, list(beside)
        # tanh(a) sigmoid(b) W + bias is linear in (s t, t, 1) with s = sigmoid(2a), t = sigmoid(b): the factor 2 goes into
        # what makes a, the rest into W, and a pixel is two matrix products, one sigmoid and one product
        twice = torch.ones(outputs, dtype=weight.dtype, device=weight.device)
        twice[:channels] = 2
        self.left = (layer.horizontal.weight[:, :, 0].permute(2, 1, 0).reshape(-1, outputs) * twice).contiguous()
        self.cross = (layer.cross.weight[:, :, 0, 0].t() * twice).contiguous()
        self.bias = (layer.cross.bias + layer.horizontal.bias) * twice
        mix = layer.residual.weight[:, :, 0, 0].t()
        self.out = torch.cat([2 * mix, -mix, layer.residual.bias[None]])
        self.state = weight.new_ones(batch, outputs + 1)
        self.pre, self.first, self.second = (
            self.state[:, :outputs],
            self.state[:, :channels],
            self.state[:, channels:outputs],
        )
        self.nothing = weight.new_zeros(batch, channels)

    def above(self, row: int) -> Tensor:
        """Return the vertical stack's value of one row, before its gate, and keep what the row's pixels need of it."""
        above = F.conv2d(self.v[:, :, row : row + self.reach + 1], self.kernel, self.layer.vertical.bias)
        by_column = above[:, :, 0].permute(2, 0, 1)
        torch.addmm(self.bias, by_column.reshape(-1, by_column.shape[2]), self.cross, out=self.beside.flatten(0, 1))
        return above

    def put_row(self, row: int, values: Tensor) -> None:
        """Keep one row of vertical inputs, (batch, inputs, 1, width)."""
        at = row + self.reach + 1
        self.v[:, :, at : at + 1, self.reach : self.v.shape[3] - self.reach] = values

    def pixel(self, column: int, into: Tensor) -> None:
        """Write the horizontal stack's value of one pixel, (batch, channels), into the next layer's inputs."""
        torch.addmm(self.beside_columns[column], self.windows[column], self.left, out=self.pre)
        self.pre.sigmoid_()
        self.first.mul_(self.second)
        residual = self.nothing if self.layer.first else self.columns[column]
        torch.addmm(residual, self.state, self.out, out=into)


@torch.no_grad()
def ancestral_sample(
    decoder: "PixelCNN",
    z: Float[Tensor, "batch latent"],
    noise: Float[Tensor, "batch 1 height width"],
    progress: PixelProgress | None = None,
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
    layers = [_LayerCache(layer, batch, height, width) for layer in decoder.layers]
    head, bias = decoder.head.weight[0, :, 0, 0], decoder.head.bias
    last = torch.empty_like(layers[-1].nothing)
    with _show_progress(progress) as report:
        for row in range(height):
            for index, layer in enumerate(layers):
                above = layer.above(row)
                if index + 1 < len(layers):
                    layers[index + 1].put_row(row, gate(above))
            first = layers[0]
            for column in range(width):
                first.columns[column][:, 1:] = maps[:, :, row, column]
                if column:
                    first.columns[column][:, 0] = x[:, 0, row, column - 1]
                for layer, following in pairwise(layers):
                    layer.pixel(column, into=following.columns[column])
                layers[-1].pixel(column, into=last)
                here = (slice(None), 0, row, column)
                params[here] = torch.addmv(bias, last, head)
                x[here] = decoder.likelihood.sample(params[here], noise[here])  # type: ignore[operator]
            first.put_row(row, torch.cat([x[:, :, row : row + 1], maps[:, :, row : row + 1]], dim=1))
            report(row + 1, height)
    return x, params


@contextmanager
def _show_progress(progress: PixelProgress | None) -> Iterator[PixelProgress]:
    """Give the caller's own callback, or a bar on a terminal, or nothing."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda done, rows: None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sampling rows", total=None)
        yield lambda done, rows: bar.update(task, completed=done, total=rows)
