"""A plain port of the decoder of Kim et al. (2018), written from its description: the yardstick for speed and equality.

Padding modules, one convolution after the other, gates as two separate functions, nothing fused, PyTorch's default
memory format: what one would write first. Parameters have the names and shapes of `bsvi.nets.PixelCNN`, so that one
loads the other's weights.

`shift="after"` is the convention of Kim et al.: convolve, then shift the result, which leaves zeros in row 0 (and in
column 0 of the first horizontal layer). `shift="before"` has the package's convention, to compare values and gradients:
the padding shifts, the bias stays in row 0, and the first horizontal layer sees z's maps at the pixel itself.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

Shift = Literal["after", "before"]


class PlainLayer(nn.Module):
    """One gated layer: vertical stack, horizontal stack, and the 1x1 convolution from the one to the other."""

    def __init__(self, inputs: int, channels: int, kernel: int, first: bool, shift: Shift) -> None:
        super().__init__()
        reach = kernel // 2
        self.channels, self.first, self.shift = channels, first, shift
        self.vertical = nn.Conv2d(inputs, 2 * channels, (reach + 1, kernel))
        self.cross = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.horizontal = nn.Conv2d(inputs, 2 * channels, (1, reach + 1))
        self.residual = nn.Conv2d(channels, channels, 1)
        self.pad_above = nn.ConstantPad2d((reach, reach, reach, 0), 0.0)
        self.pad_left = nn.ConstantPad2d((reach, 0, 0, 0), 0.0)
        self.one_above = nn.ConstantPad2d((0, 0, 1, 0), 0.0)
        self.one_left = nn.ConstantPad2d((1, 0, 0, 0), 0.0)

    def gated(self, pre: Tensor) -> Tensor:
        return torch.tanh(pre[:, : self.channels]) * torch.sigmoid(pre[:, self.channels :])

    def forward(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        if self.shift == "after":
            above = self.one_above(self.vertical(self.pad_above(v)))[:, :, :-1]
        else:
            above = self.vertical(self.pad_above(self.one_above(v)[:, :, :-1]))
        left = self.horizontal(self.pad_left(h))
        if self.first and self.shift == "after":
            left = self.one_left(left)[:, :, :, :-1]
        out = self.residual(self.gated(left + self.cross(above)))
        return self.gated(above), out if self.first else out + h


class PlainPixelCNN(nn.Module):
    """ln p(x | z) for binary images, summed in float64 like the package's decoder."""

    def __init__(
        self, latent: int, image: tuple[int, int], channels: int, kernels: Sequence[int], shift: Shift = "after"
    ) -> None:
        super().__init__()
        self.image, self.shift = image, shift
        self.from_z = nn.Linear(latent, 4 * image[0] * image[1])
        self.layers = nn.ModuleList(
            PlainLayer(5 if index == 0 else channels, channels, kernel, index == 0, shift)
            for index, kernel in enumerate(kernels)
        )
        self.head = nn.Conv2d(channels, 1, 1)

    def params(self, x: Tensor, z: Tensor) -> Tensor:
        maps = self.from_z(z).view(z.shape[0], 4, *self.image)
        v = h = torch.cat([x, maps], dim=1)
        if self.shift == "before":
            h = torch.cat([nn.functional.pad(x, (1, 0))[:, :, :, :-1], maps], dim=1)
        for layer in self.layers:
            v, h = layer(v, h)
        return self.head(h)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self.params(x, z), x, reduction="none")
        return -loss.flatten(1).sum(1, dtype=torch.float64)
