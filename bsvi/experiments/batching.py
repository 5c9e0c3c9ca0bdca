"""How many images a batch of an evaluation takes, so that it ends within seconds: a kill loses no more, and progress is seen.

Chosen by what the decoder costs and not by a clock, so that the same command groups the images alike and gives the same bits.
No number depends on it beyond rounding (the noise belongs to the image); with ``svi.clip = "batch"``, which couples the images
of a batch, it is fixed.
"""

import math

from bsvi.experiments.architectures import find_architecture
from bsvi.experiments.config import Net

SECONDS = 10.0  # of a batch, on one core; with a hundred times as many images each would take a fifth to a third less
MOST = 500  # images: more cost memory and win nothing
_GRADIENT = 3  # a pass with a gradient to z costs this many without
_CUDA = 100  # a GPU does the work of so many cores


def choose_batch_size(net: Net, image: tuple[int, int], passes: int, threads: int = 1, device: str = "cpu") -> int:
    """Images of one batch, where each takes so many passes of the decoder; at least one, however long it takes.

    >>> nets = Net(kind="mlp"), Net(channels=8, kernels=(5, 3, 3)), Net()
    >>> [choose_batch_size(net, (28, 28), 4000) for net in nets]
    [141, 14, 1]
    """
    seconds = find_architecture(net).count_seconds(net, math.prod(image)) * passes
    workers = _CUDA if device == "cuda" else math.sqrt(max(1, threads))  # threads share a small batch badly
    return max(1, min(MOST, math.ceil(SECONDS * workers / seconds)))


def count_evaluate_passes(k: int, draws: int, samples: int = 1, elbo_draws: int = 32) -> int:
    """Of ``bsvi.evaluate`` with at most ``draws`` of IWAE."""
    return _GRADIENT * (k + 1) * samples + elbo_draws + draws


def count_gap_passes(k: int, steps: int) -> int:
    """Of ``bsvi.amortization_gap``: the climb with 8 samples, a quarter again, a quarter with 16, and three times k draws."""
    return _GRADIENT * (8 * steps + 8 * (steps // 4) + 16 * (steps // 4)) + 3 * min(k, 100) + 3 * k


def count_ais_passes(chains: int = 16, pilots: int = 4, temperatures: int = 500, leapfrog: int = 10) -> int:
    """Of ``bsvi.ais``: one gradient for each leapfrog step of each chain."""
    return _GRADIENT * (chains + pilots) * temperatures * leapfrog


def count_annealed_passes(passes: int) -> int:
    """Of ``bsvi.refine_anneal``: nearly all are gradients, which its passes count as two."""
    return _GRADIENT * passes // 2
