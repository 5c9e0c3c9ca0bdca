"""The paper's eight methods: a table, and ``objective(name)`` which reads it."""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from bsvi.buffer_weights import Last, Learned, Uniform
from bsvi.objectives import Objective
from bsvi.refine import SVI, Amortized, Refinement, whole
from bsvi.theta import AllDraws, LastDraw, Recomputed, Resampled, ThetaRule


@dataclass(frozen=True)
class Method:
    """One row of the paper's tables; ``k`` is the paper's k = 9, and k' = k + 1 (section 6.1)."""

    label: str  # the paper's name for it
    draws: Callable[[int, SVI], Refinement]
    pi: Callable[[int], nn.Module]  # of the number of weights, k + 1
    theta: ThetaRule


def _uniform(draws: int) -> nn.Module:
    return Uniform()


def _last(draws: int) -> nn.Module:
    return Last()


def _svi(k: int, svi: SVI) -> SVI:
    return replace(svi, steps=k)


METHODS: dict[str, Method] = {
    "vae": Method("VAE", lambda k, svi: Amortized(1), _uniform, AllDraws()),
    "iwae": Method("IWAE-k'", lambda k, svi: Amortized(k + 1), _uniform, AllDraws()),
    "svi": Method("SVI-k'", lambda k, svi: _svi(k + 1, svi), _last, LastDraw()),
    "bsvi": Method("BSVI-k", _svi, _uniform, AllDraws()),
    "bsvi-ds": Method("BSVI-k-DS", lambda k, svi: replace(svi, steps=k, double_sampling=True), _uniform, AllDraws()),
    "bsvi-pi": Method("BSVI-k-π", _svi, Learned, AllDraws()),
    "bsvi-sir": Method("BSVI-k-SIR", _svi, _uniform, Resampled()),
    "bsvi-sir-pi": Method("BSVI-k-SIR-π", _svi, Learned, Resampled()),
}


def objective(
    name: str, k: int | None = None, svi: SVI | None = None, *, resampled: int = 1, recompute: bool | None = None
) -> Objective:
    """The objective of one of the paper's methods: ``objective("bsvi-sir", k=9)``.

    k          SVI steps of the BSVI methods; svi and iwae take k' = k + 1. Without it ``svi.steps``, 9 by default
    svi        the refinement's settings: rate, momentum, clipping
    resampled  draws of q_SIR that train theta in the SIR methods (section 5)
    recompute  for the methods that learn from all draws: get theta's gradient by running the decoder again, one draw
               at a time (``Recomputed``), in place of keeping k + 1 decoder graphs in memory. None: where the graphs of
               the BSVI methods would take more than 1 GiB

    >>> objective("bsvi-sir", k=5).refinement.steps, objective("svi", k=5).refinement.steps
    (5, 6)
    >>> objective("bvsi")
    Traceback (most recent call last):
    ...
    ValueError: unknown method 'bvsi'; did you mean 'bsvi'? The methods: vae, iwae, svi, bsvi, ...
    """
    if name not in METHODS:
        close = difflib.get_close_matches(str(name), METHODS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown method {name!r}; {hint}The methods: {', '.join(METHODS)}")
    svi = SVI() if svi is None else svi
    k = svi.steps if k is None else whole("k", k)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; for no refinement use objective('vae')")
    method = METHODS[name]
    theta = method.theta
    if isinstance(theta, Resampled):
        theta = Resampled(resampled)
    draws = method.draws(k, svi)
    if isinstance(draws, Amortized):
        draws = replace(draws, recompute=bool(recompute) and draws.draws > 1)
    elif isinstance(theta, AllDraws) and recompute is not None:
        theta = Recomputed() if recompute else AllDraws(budget=math.inf)
    return Objective(draws, method.pi(k + 1), theta)
