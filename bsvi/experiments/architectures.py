"""The kinds of networks that ``--net.kind`` names, one row each. Imports no torch until networks are built."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bsvi.experiments.config import Net
from bsvi.tables.table import Table

# Seconds of one core for one number of a layer, within a factor of two from 8 to 32 channels; in C++ a PixelCNN takes a quarter.
_ELEMENT = 1e-8  # of a PixelCNN
_PRODUCT = 1.5e-8  # of a fully connected network


@dataclass(frozen=True)
class Architecture:
    """One row; each function takes the settings of the networks.

    build          (net, image, likelihood, spectral) -> encoder and decoder, freshly initialised
    count_layers   layers that see the image in full, for the limit on a stranger's sizes
    count_seconds  (net, pixels) -> of one core for one pass of the decoder and one image, roughly
    describe       the networks in a few words
    is_small       whether a run leaves a core's memory to others, so that a sweep trains one on each core
    """

    build: Callable[[Net, tuple[int, int], Any, bool | None], tuple[Any, Any]]
    count_layers: Callable[[Net], int]
    count_seconds: Callable[[Net, int], float]
    describe: Callable[[Net], str]
    is_small: Callable[[Net], bool]


def _build_pixelcnn(net: Net, image: tuple[int, int], likelihood: Any, spectral: bool | None) -> tuple[Any, Any]:
    from bsvi import nets

    encoder = nets.ResNetEncoder(net.latent, image, net.encoder)
    return encoder, nets.PixelCNN(
        net.latent, image, net.channels, net.kernels, likelihood=likelihood, spectral=spectral
    )


def _build_mlp(net: Net, image: tuple[int, int], likelihood: Any, spectral: bool | None) -> tuple[Any, Any]:
    from bsvi import nets

    encoder = nets.MLPEncoder(net.latent, image, net.hidden)
    return encoder, nets.MLPDecoder(net.latent, image, net.hidden, likelihood=likelihood)


ARCHITECTURES: Table[Architecture] = Table(
    "kind of network",
    {
        "pixelcnn": Architecture(
            build=_build_pixelcnn,
            count_layers=lambda net: len(net.kernels),
            count_seconds=lambda net, pixels: _ELEMENT * net.channels * len(net.kernels) * pixels,
            describe=lambda net: f"PixelCNN of {len(net.kernels)} layers",
            is_small=lambda net: net.channels <= 8,
        ),
        "mlp": Architecture(
            build=_build_mlp,
            count_layers=lambda net: 1,
            count_seconds=lambda net, pixels: _PRODUCT * (2 * net.hidden + pixels),
            describe=lambda net: "fully connected networks",
            is_small=lambda net: True,
        ),
    },
)


def find_architecture(net: Net) -> Architecture:
    """The row of these settings.

    >>> find_architecture(Net(kind="mlp")).describe(Net(kind="mlp"))
    'fully connected networks'
    """
    return ARCHITECTURES.find(net.kind)
