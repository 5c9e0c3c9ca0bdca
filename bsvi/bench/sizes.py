"""Milliseconds of a BSVI-9-SIR step for the sizes that are meant for a CPU."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bsvi.bench.steps import step_bsvi_9_sir
from bsvi.nets import (
    DIGITS_KERNELS,
    SMALL_KERNELS,
    Decoder,
    DiscretisedLogistic,
    MLPDecoder,
    MLPEncoder,
    PixelCNN,
    ResNetEncoder,
)
from bsvi.system.clock import CLOCKS, ClockName
from bsvi.system.runtime import compile_decoder, keep_freed_memory


@dataclass(frozen=True)
class Size:
    """A pair of networks, and the step time that the project wants for it (batch 50)."""

    encoder: Callable[[], nn.Module]
    decoder: Callable[[], Decoder]
    goal_ms: float | None


def _make_small(latent: int, image: tuple[int, int], likelihood: nn.Module | None) -> Size:
    return Size(
        lambda: ResNetEncoder(latent, image, (8, 16, 16)),
        lambda: PixelCNN(latent, image, 8, SMALL_KERNELS, likelihood=likelihood),
        250.0,
    )


SIZES = {
    "omniglot-mlp": Size(MLPEncoder, MLPDecoder, 15.0),
    "svhn-mlp": Size(
        lambda: MLPEncoder(50, (32, 32)), lambda: MLPDecoder(50, (32, 32), likelihood=DiscretisedLogistic()), 15.0
    ),
    "omniglot-small": _make_small(32, (28, 28), None),
    "fashion-mnist-small": _make_small(32, (28, 28), DiscretisedLogistic()),
    "svhn-small": _make_small(64, (32, 32), DiscretisedLogistic()),
    "digits": Size(lambda: ResNetEncoder(8, (8, 8), (8, 16, 16)), lambda: PixelCNN(8, (8, 8), 8, DIGITS_KERNELS), None),
}


def run(
    names: tuple[str, ...] = tuple(SIZES),
    batch: int = 50,
    compiled: bool = False,
    repeats: int = 9,
    clock: ClockName = "wall",
) -> list[dict[str, Any]]:
    """Return the median step time of each size in milliseconds, with its goal."""
    tick = CLOCKS[clock]
    keep_freed_memory()
    rows = []
    for name in names:
        if name not in SIZES:
            raise ValueError(f"unknown size {name!r}; there are {', '.join(SIZES)}")
        torch.manual_seed(0)
        size = SIZES[name]
        encoder, decoder = size.encoder(), size.decoder()
        done = compiled and compile_decoder(decoder, "on")
        x, times = torch.randint(2, (batch, 1, *decoder.image)).float(), []
        for _ in range(repeats + 2):
            begin = tick()
            step_bsvi_9_sir(encoder, decoder, x)
            times.append(tick() - begin)
        milliseconds = 1e3 * statistics.median(times[2:])
        rows.append({"size": name, "compiled": done, "milliseconds": milliseconds, "goal_ms": size.goal_ms})
    return rows
