"""Milliseconds of a BSVI-9-SIR step for the sizes that are meant for a CPU, as written and compiled."""

import copy
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
    """Return the median step time of each size in milliseconds, with its goal; ``compiled``: and the ratio when compiled.

    Both forms of a size take turns, so that other work on the machine meets both.
    """
    tick = CLOCKS[clock]
    keep_freed_memory()
    rows = []
    for name in names:
        if name not in SIZES:
            raise ValueError(f"unknown size {name!r}; there are {', '.join(SIZES)}")
        torch.manual_seed(0)
        size = SIZES[name]
        encoder, decoders = size.encoder(), [size.decoder()]
        if compiled:
            decoders += [copy.deepcopy(decoders[0])]
            compile_decoder(decoders[1], "on")
        x = torch.randint(2, (batch, 1, *decoders[0].image)).float()
        times: list[list[float]] = [[] for _ in decoders]
        for _ in range(repeats + 2):
            for decoder, own in zip(decoders, times, strict=True):
                begin = tick()
                step_bsvi_9_sir(encoder, decoder, x)
                own.append(tick() - begin)
        milliseconds = 1e3 * statistics.median(times[0][2:])
        row: dict[str, Any] = {"size": name, "milliseconds": milliseconds, "goal_ms": size.goal_ms}
        if compiled:
            ratios = [new / old for old, new in zip(*(own[2:] for own in times), strict=True)]
            form = "C++" if getattr(decoders[1], "has_native_form", False) else "torch.compile"
            row |= {"compiled by": form, "ratio": statistics.median(ratios), "from": min(ratios), "to": max(ratios)}
        rows.append(row)
    return rows
