"""What caching is worth in ancestral sampling: one run against one full pass per pixel."""

import statistics
from typing import Any

import torch

from bsvi.bench.port import PlainPixelCNN
from bsvi.nets import PAPER_KERNELS, PixelCNN
from bsvi.nets.sampling import ancestral_sample
from bsvi.system.clock import CLOCKS, ClockName


def run(
    images: int = 20,
    latent: int = 32,
    image: tuple[int, int] = (28, 28),
    naive_pixels: int = 30,
    rounds: int = 3,
    clock: ClockName = "wall",
) -> dict[str, Any]:
    """Return seconds for `images` samples with caches and naively, interleaved; the naive ones are extrapolated.

    `speedup` is against full passes of the package's own decoder, `speedup_over_port` against those of the plain port.

    >>> result = run(images=2, image=(8, 8), naive_pixels=2, rounds=1)
    >>> result["naive_is_extrapolated_from_pixels"], result["speedup"] > 1
    (2, True)
    """
    torch.manual_seed(0)
    tick = CLOCKS[clock]
    decoder, pixels = PixelCNN(latent, image), image[0] * image[1]
    port = PlainPixelCNN(latent, image, 32, PAPER_KERNELS)
    z, noise = torch.randn(images, latent), torch.rand(images, 1, *image)
    x, params = ancestral_sample(decoder, z, noise, progress=lambda done, rows: None)
    few = max(1, min(naive_pixels, pixels) // rounds)
    cached: list[float] = []
    naive: list[float] = []
    naive_port: list[float] = []
    with torch.no_grad():
        whole = decoder.params(x, z)
        port.params(x, z)  # warm, like the others
        for _ in range(rounds):
            begin = tick()
            ancestral_sample(decoder, z, noise, progress=lambda done, rows: None)
            cached.append(tick() - begin)
            for passes, net in ((naive, decoder), (naive_port, port)):
                begin = tick()
                for _ in range(few):
                    net.params(x, z)
                passes.append((tick() - begin) / few * pixels)
    return {
        "images": images,
        "clock": clock,
        "threads": torch.get_num_threads(),
        "cached_seconds": statistics.median(cached),
        "naive_seconds": statistics.median(naive),
        "naive_port_seconds": statistics.median(naive_port),
        "naive_is_extrapolated_from_pixels": few * rounds,
        "speedup": statistics.median(n / c for n, c in zip(naive, cached, strict=True)),
        "speedup_over_port": statistics.median(n / c for n, c in zip(naive_port, cached, strict=True)),
        "largest_difference_of_parameters": (params - whole).abs().max().item(),
        "same_pixels": bool(torch.equal(x, decoder.likelihood.sample(whole, noise))),  # type: ignore[operator]
    }
