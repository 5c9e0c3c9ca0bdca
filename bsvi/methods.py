"""``objective(name)``: one row of the table of methods (bsvi/tables/methods.py), built."""

import math
from dataclasses import replace

from bsvi.objectives import Objective
from bsvi.refine import SVI, Amortized, whole
from bsvi.tables.methods import METHODS, Method
from bsvi.theta import AllDraws, Recomputed, Resampled, ThetaRule

__all__ = ["METHODS", "Method", "objective"]


def objective(
    name: str, k: int | None = None, svi: SVI | None = None, *, resampled: int = 1, recompute: bool | None = None
) -> Objective:
    """The objective of one of the methods: ``objective("bsvi-sir", k=9)``.

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
    method = METHODS.find(name)
    svi = SVI() if svi is None else svi
    k = svi.steps if k is None else whole("k", k)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; for no refinement use objective('vae')")
    theta = method.theta if isinstance(method.theta, ThetaRule) else method.theta()
    if isinstance(theta, Resampled):
        theta = Resampled(resampled)
    draws = method.draws(k, svi)
    if isinstance(draws, Amortized):
        draws = replace(draws, recompute=bool(recompute) and draws.draws > 1)
    elif isinstance(theta, AllDraws) and recompute is not None:
        theta = Recomputed() if recompute else AllDraws(budget=math.inf)
    return Objective(draws, method.pi(k + 1), theta)
