"""The gated PixelCNN decoder of Kim et al. (2018): the paper's p_theta(x | z) for all three data sets.

Two stacks of feature maps: the vertical one sees all rows above a pixel, the horizontal one the pixels to its left and,
at each layer, what the vertical one knows. Together they see exactly the pixels before it in reading order, and z.

Two differences to the code of Kim et al., both causal:

* There the vertical convolution is shifted down *after* it was computed, which leaves row 0 exactly zero; here one
  padding also does the shift, so row 0 carries the bias. It is faster, and no layer has to learn around a zero row.
* There the maps made from z are masked like the image, so z does not reach the first pixel. z comes before every pixel,
  so here the first horizontal layer sees the maps at the pixel itself: z reaches all pixels.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bsvi.nets.decoder import Decoder
from bsvi.nets.gate import gate
from bsvi.nets.native import MOST_MAPS, NativeStacks
from bsvi.nets.native_slopes import NativeSlopes, find_slopes
from bsvi.nets.sampling import PixelProgress, ancestral_sample
from bsvi.nets.slopes import Slopes
from bsvi.nets.spectral import convolve_rows_above, make_matrices

PAPER_KERNELS = (9, 9, 9, 7, 7, 7, 5, 5, 5, 3, 3, 3)
SMALL_KERNELS = (5, 3, 3)  # with 8 channels: a CPU trains it on 28x28
DIGITS_KERNELS = (3, 3)  # with 8 channels: for 8x8

Maps = Float[Tensor, "batch channels height width"]
TwiceMaps = Float[Tensor, "batch twice height width"]


class Conv(nn.Conv2d):
    """A convolution that always has a bias (the type of `nn.Conv2d` leaves it open)."""

    bias: Tensor


class GatedLayer(nn.Module):
    """One layer of both stacks. The first one has no residual: its input is the image, which a pixel must not see."""

    analyse: Tensor
    of_kernel: Tensor
    synthesise: Tensor

    def __init__(
        self, inputs: int, channels: int, kernel: int, width: int, first: bool = False, spectral: bool | None = None
    ) -> None:
        super().__init__()
        if kernel < 3 or kernel % 2 == 0:
            raise ValueError(f"a kernel must be odd and at least 3, got {kernel}")
        self.reach = kernel // 2
        self.vertical = Conv(inputs, 2 * channels, (self.reach + 1, kernel))
        self.cross = Conv(2 * channels, 2 * channels, 1)
        self.horizontal = Conv(inputs, 2 * channels, (1, self.reach + 1))
        self.residual = Conv(channels, channels, 1)
        self.width, self.first = width, first
        # measured (docs/performance.md): below 5 taps or 16 channels the direct convolution is as fast or faster
        self.worthwhile = kernel >= 5 and inputs >= 16
        self.spectral = spectral
        self._make_transform()

    def _make_transform(self) -> None:
        """Compute the transform from scratch in the weight's type: a cast from float32 would keep float32's error."""
        weight = self.vertical.weight
        made = tuple(m.to(weight) for m in make_matrices(self.width, 2 * self.reach + 1)) if self.uses_spectral else ()
        for name, matrix in zip(("analyse", "of_kernel", "synthesise"), made, strict=False):
            self.register_buffer(name, matrix, persistent=False)

    @property
    def uses_spectral(self) -> bool:
        """Whether the vertical convolution goes through the frequency domain: by default on a CPU where it is faster."""
        if self.spectral is None:
            return self.worthwhile and self.vertical.weight.device.type in ("cpu", "meta")
        return self.spectral

    def _apply(self, fn: Any, recurse: bool = True) -> "GatedLayer":
        super()._apply(fn, recurse)
        self._make_transform()
        return self

    def above(self, v: Maps) -> TwiceMaps:
        """Return the vertical stack before its gate: row r is a function of the rows of `v` before r."""
        reach = self.reach
        if self.uses_spectral:
            padded = F.pad(v, (0, 0, reach + 1, -1))  # this is also the shift: the last row is dropped
            return convolve_rows_above(
                padded, self.vertical.weight, self.vertical.bias, (self.analyse, self.of_kernel, self.synthesise)
            )
        return self.vertical(F.pad(v, (reach, reach, reach + 1, -1)))

    def forward(self, above: TwiceMaps, h: Float[Tensor, "batch inputs height width"]) -> Maps:
        """Return the horizontal stack one layer on, from the vertical stack before its gate and itself."""
        left = self.horizontal(F.pad(h, (self.reach, 0, 0, 0)))
        out = self.residual(gate(left, self.cross(above)))
        return out if self.first else out + h


class PixelCNN(Decoder):
    """ln p(x | z) with pixels in reading order, each given all before it and z. The defaults are the paper's sizes.

    >>> decoder = PixelCNN(latent=4, image=(8, 8), channels=8, kernels=(3, 3))
    >>> x, z = torch.zeros(5, 1, 8, 8), torch.zeros(5, 4)
    >>> decoder(x, z).shape, decoder(x, z).dtype, decoder.sample(z).shape
    (torch.Size([5]), torch.float64, torch.Size([5, 1, 8, 8]))
    """

    def __init__(
        self,
        latent: int = 32,
        image: tuple[int, int] = (28, 28),
        channels: int = 32,
        kernels: Sequence[int] = PAPER_KERNELS,
        maps: int = 4,
        likelihood: nn.Module | None = None,
        *,
        spectral: bool | None = None,
    ) -> None:
        super().__init__(latent, image, likelihood)
        if channels < 1 or maps < 1 or not kernels:
            raise ValueError(
                f"PixelCNN needs channels, maps >= 1 and a kernel, got {channels}, {maps}, {list(kernels)}"
            )
        self.maps = maps
        self.from_z = nn.Linear(latent, maps * image[0] * image[1])
        inputs = [1 + maps, *[channels] * (len(kernels) - 1)]
        self.layers: list[GatedLayer] = nn.ModuleList(  # type: ignore[assignment]
            GatedLayer(wide, channels, kernel, image[1], index == 0, spectral)
            for index, (wide, kernel) in enumerate(zip(inputs, kernels, strict=True))
        )
        self.head = Conv(channels, 1, 1)
        self._native: NativeStacks | None = None

    def build_native(self) -> None:
        """Run the stacks as functions in C++ from now on, where they fit; NativeError, a line, where that cannot be."""
        self._native = NativeStacks(self) if self._native is None else self._native

    @property
    def has_native_form(self) -> bool:
        """Whether there is C++ for these sizes that is the quickest way: large kernels go through the frequency domain."""
        watched = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in self.modules())
        as_made = type(self) is PixelCNN and not {"forward", "log_lik", "params"} & vars(self).keys() and not watched
        sizes = self.head.in_channels % 8 == 0 and self.maps <= MOST_MAPS and self.head.weight.dtype == torch.float32
        on_cpu = self.head.weight.device.type == "cpu"
        return as_made and sizes and on_cpu and not any(layer.uses_spectral for layer in self.layers)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_native": None}

    def z_maps(self, z: Float[Tensor, "batch latent"]) -> Maps:
        """Return z as `maps` feature maps of the image's size."""
        return self.from_z(z).view(z.shape[0], self.maps, *self.image)

    def params(
        self, x: Float[Tensor, "batch 1 height width"], z: Float[Tensor, "batch latent"]
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return the likelihood's parameter for each pixel, a function of the pixels before it and of z."""
        maps = self.z_maps(z)
        if self._native is not None and self._native.fits(x, maps):
            return self._native(x, maps)
        return self.run_layers(x, maps, self._first_above(x, z, maps))

    def slopes(self, x: Tensor) -> NativeSlopes | Slopes | None:
        """ln p(x | z) and its derivative by z as a function of z, where the stacks run in C++."""
        return None if self._native is None else find_slopes(self._native, x)

    def run_layers(
        self,
        x: Float[Tensor, "batch 1 height width"],
        maps: Maps,
        above: TwiceMaps | None = None,
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return the likelihood's parameters from x and the maps made of z; `above` is the first layer's vertical stack."""
        h = torch.cat([F.pad(x, (1, -1)), maps], dim=1).contiguous(memory_format=torch.channels_last)
        if above is None:
            above = self._convolve_first(x, maps)
        for layer in self.layers:
            if not layer.first:
                above = layer.above(gate(above))
            h = layer(above, h)
        return self.head(h)

    def _convolve_first(self, x: Tensor, maps: Tensor) -> Tensor:
        return self.layers[0].above(torch.cat([x, maps], dim=1).contiguous(memory_format=torch.channels_last))

    def _first_above(self, x: Tensor, z: Tensor, maps: Tensor) -> Tensor:
        """Return the first layer's vertical stack before its gate.

        It is linear in z. With more images than latents it is cheaper to convolve the maps of each unit vector once:
        the gradient to z is then one matrix product instead of a convolution with five badly vectorised outputs.
        """
        layer = self.layers[0]
        if z.shape[0] <= self.latent:
            return self._convolve_first(x, maps)
        reach, (height, width) = layer.reach, self.image
        padding = (reach, reach, reach + 1, -1)
        weight = layer.vertical.weight
        basis = torch.cat([self.from_z.weight.t(), self.from_z.bias[None]]).view(-1, self.maps, height, width)
        basis = F.conv2d(F.pad(basis, padding).contiguous(memory_format=torch.channels_last), weight[:, 1:])
        of_z = F.pad(z, (0, 1), value=1.0) @ basis.permute(0, 2, 3, 1).reshape(self.latent + 1, -1)
        of_x = F.conv2d(
            F.pad(x, padding).contiguous(memory_format=torch.channels_last), weight[:, :1], layer.vertical.bias
        )
        return of_x + of_z.view(-1, height, width, weight.shape[0]).permute(0, 3, 1, 2)

    def sample(
        self,
        z: Float[Tensor, "batch latent"],
        generator: torch.Generator | None = None,
        progress: PixelProgress | None = None,
    ) -> Float[Tensor, "batch 1 height width"]:
        """Return one image per latent by ancestral sampling with cached activations (see `bsvi.nets.sampling`).

        `progress(rows_done, rows)` is called after each row; without one, a bar is shown where there is a terminal.
        """
        return ancestral_sample(self, z, self.noise(z, generator), progress)[0]
