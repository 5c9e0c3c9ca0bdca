"""``objective(name)``: one row of the table of methods (bsvi/tables/methods.py), built."""

from bsvi.objectives import Objective
from bsvi.refinement import SVI, Options, TakesOptions, whole
from bsvi.tables.methods import METHODS, Method
from bsvi.theta import ThetaRule

__all__ = ["METHODS", "Method", "objective"]


def objective(
    name: str,
    k: int | None = None,
    svi: SVI | None = None,
    *,
    resampled: int = 1,
    recompute: bool | None = None,
    width: int | None = None,
    learned_rates: bool | None = None,
    finite_difference: bool = False,
) -> Objective:
    """The objective of one of the methods: ``objective("bsvi-sir", k=9)``.

    Args:
        k: SVI steps of the BSVI methods; svi and iwae take k' = k + 1. Without it ``svi.steps``, 9 by default
        svi: the refinement's settings: rate, momentum, clipping
        resampled: draws of q_SIR that train theta in the SIR methods (section 5)
        recompute: for the methods that learn from all draws: get theta's gradient by running the decoder again, one
            draw at a time (``Recomputed``), in place of keeping k + 1 decoder graphs in memory. None: where the
            graphs of the BSVI methods would take more than 1 GiB
        width: how many numbers lambda has per example, 2 * latent: the methods that are trained end to end then
            have a rate for every coordinate, and the network of the iterative ones can be saved before its first
            batch
        learned_rates: whether a method that is trained end to end learns its rates; None: as its row says
        finite_difference: for the same methods, where the decoder cannot be differentiated twice

    Returns:
        An ``Objective``: call it with a model and a batch for the loss.

    Example:
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
    draws, rest = method.draws(k, svi), Options(recompute, width, learned_rates, finite_difference)
    if isinstance(draws, TakesOptions):
        draws, rest = draws.take_options(rest)
    if rest.learned_rates is not None or rest.finite_difference:
        raise ValueError(f"{name} is not trained end to end: leave learned_rates and finite_difference out")
    theta = method.theta if isinstance(method.theta, ThetaRule) else method.theta()
    return Objective(draws, method.pi(k + 1), theta.change(resampled, rest.recompute))
