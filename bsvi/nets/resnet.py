"""The residual encoder of Kim et al. (2018): the paper's f_phi."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """relu(skip(x) + two 3x3 convolutions with BatchNorm); the skip is a 1x1 convolution where the width changes."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        # no bias before a BatchNorm: it would be subtracted again
        self.body = nn.Sequential(
            nn.Conv2d(inputs, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.skip = nn.Identity() if inputs == channels else nn.Conv2d(inputs, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.body(x))


class ResNetEncoder(nn.Module):
    """lambda_0 = (mean, log-variance) from an image. The defaults are the paper's sizes.

    Residual blocks, each followed by a 2x2 convolution of stride 2 (28, 14, 7, 3: an odd edge is dropped), then the two
    linear heads, kept as one matrix: the first half of the output is the mean, the second the log-variance.

    >>> ResNetEncoder(latent=4, image=(8, 8), channels=(8, 8, 8))(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self, latent: int = 32, image: tuple[int, int] = (28, 28), channels: Sequence[int] = (64, 64, 64)
    ) -> None:
        super().__init__()
        height, width = (side >> len(channels) for side in image)
        if latent < 1 or not channels or min(height, width) < 1:
            least = 2 ** len(channels)
            raise ValueError(
                f"ResNetEncoder needs latent >= 1, a block and an image of at least {least}x{least} for its "
                f"{len(channels)} halvings, got latent {latent}, image {image}"
            )
        blocks: list[nn.Module] = []
        for inputs, outputs in zip([1, *channels[:-1]], channels, strict=True):
            blocks += [ResidualBlock(inputs, outputs), nn.Conv2d(outputs, outputs, 2, stride=2)]
        self.blocks = nn.Sequential(*blocks)
        self.heads = nn.Linear(channels[-1] * height * width, 2 * latent)

    def forward(self, x: Float[Tensor, "batch 1 height width"]) -> Float[Tensor, "batch two_latent"]:
        """Return the mean and the log-variance side by side: f_phi(x) of the paper."""
        features = self.blocks(x.contiguous(memory_format=torch.channels_last))
        return self.heads(features.flatten(1))
