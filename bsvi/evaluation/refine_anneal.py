"""refine_anneal(): ln p(x) by chains that start close to the posterior, the tightest bound for its cost.

From the encoder's q a base density q* is fitted to each example (``base_density``). Chains then go from q* to the posterior along
q*(z)^(1 - beta) p(x, z)^beta, and ln w = sum_t (beta_t - beta_{t-1}) (ln p(x, z) - ln q*(z)). As q* and the step sizes never see
the weighed chains' noise, E[w] = p(x): the log of the chains' average is a lower bound on ln p(x) in expectation.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bsvi.draws import posterior
from bsvi.evaluation.ais import Annealed, anneal, check_draws, make_schedule
from bsvi.evaluation.arguments import check_counts
from bsvi.evaluation.base_density import GaussianPath, match_moments
from bsvi.evaluation.budget import Budget, plan_budget
from bsvi.evaluation.diagnostics import Tally
from bsvi.evaluation.doubts import list_nonfinite
from bsvi.evaluation.evaluate import cut_into_chunks, encode_detached
from bsvi.evaluation.example_ids import Batches
from bsvi.evaluation.fit_base import GRAPH, climb_elbo, improve
from bsvi.evaluation.hmc import Coordinates
from bsvi.evaluation.noise import KeyedModel, Noise, NoiseStream
from bsvi.evaluation.passes import Progress, tabulate
from bsvi.evaluation.priors import Prior, find_prior
from bsvi.examples import Nested, Pick, count, first
from bsvi.model import Model
from bsvi.tables.streams import find_streams

MOMENT, CLIMB, ROUND = find_streams("refine-anneal", "moment", "climb", "round")
# what is weighed never saw what chose the base and the steps
PILOT, PILOT_MOVE = find_streams("refine-anneal", "pilot", "pilot-move")
START, MOVE, EXACT = find_streams("refine-anneal", "start", "move", "exact")
COLUMNS = ("log_likelihood", "ess", "acceptance", "rise", "step_size", "correlated", "passes", "nonfinite")
_RISE = 0.5  # nats by which the average of all chains may be above that of single ones without a warning


def refine_anneal(
    model: Model,
    batches: Batches,
    passes: int = 1000,
    budget: Budget | None = None,
    seed: int = 0,
    prior: Prior | None = None,
    *,
    reverse: Callable[[Nested, int], Tensor] | None = None,
    chunk: int | None = None,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    batch: Pick | None = None,
    ids: Pick | None = None,
) -> Annealed:
    """ln p(x) of every example by chains from a q that was refined first; data, store and progress as in ``evaluate``.

    Args:
        passes: of the decoder for one example, of which ``plan_budget`` makes the best: 1,000 cost as much as
            BSVI-500
        budget: the numbers of steps, chains and temperatures themselves, in place of ``passes``
        prior: the prior, where its support is bounded and the model does not say so; found by itself for
            VAE(prior=...)
        reverse: a function of (x, chains) that returns exact samples of p(z|x), (chains, batch, latent): upper
            bound
        chunk: chains per decoder call; no number depends on it

    Returns:
        ``Annealed``: ``log_likelihood`` per example, and how the chains did.

    Example:
        >>> from bsvi import VAE
        >>> normal = lambda x, z: -0.5 * ((x - z).square() + 1.837877).sum(-1)
        >>> annealed = refine_anneal(VAE(torch.nn.Linear(1, 2), normal), torch.zeros(2, 1))
        >>> abs(annealed.log_likelihood.mean - -1.265512) < 0.01
        True
    """
    seed, passes = check_counts(seed, chunk, passes=passes)

    def anneal_batch(x: Nested, names: Tensor) -> dict[str, Tensor]:
        refined = refine(model, x, names, passes if budget is None else budget, seed, prior, chunk=chunk)
        z = None
        if reverse is not None:
            chains, shape = refined.budget.chains, posterior(model, encode_detached(model, x), x).event_shape
            drawn = NoiseStream(seed, EXACT, names).draw(lambda: reverse(x, chains), chains)
            z = check_draws(drawn, (chains, count(x), *shape)).to(first(x).device)
        return weigh_chains(refined, names, seed, chunk, z)

    bound = "lower" if reverse is None else "upper"
    asked = {"passes": passes} if budget is None else dict(vars(budget))
    question = {"what": "refine_anneal", "version": 4, "seed": seed, "bound": bound, **asked, "prior": str(prior)}
    picks, own = (batch, ids), {"prior": prior, "reverse": reverse}
    table = tabulate(model, batches, anneal_batch, question, store, progress, picks=picks, columns=COLUMNS, **own)
    result = table.as_result(*list_doubts(table.values))
    return Annealed(**result, bound=bound, passes=int(table.values["passes"].mean()))


class RefinedQ(NamedTuple):
    """Everything that the weighed chains of a batch need, of x alone."""

    path: GaussianPath
    budget: Budget
    steps: Tensor  # (moves, batch)
    correlated: Tensor  # (batch,): 1 where the base has learned correlations
    passes: Tensor  # (batch,): of the decoder; fewer than planned where an example has learned all early


def refine(
    model: Model,
    x: Nested,
    ids: Tensor,
    asked: int | Budget,
    seed: int,
    prior: Prior | None = None,
    *,
    chunk: int | None = None,
) -> RefinedQ:
    """The base density and the step sizes of every example, by a climb, its curvature, and pilots."""
    q = KeyedModel(model, seed, MOMENT, ids).posterior(encode_detached(model, x, ids, seed), x)
    source = find_prior(model, x, prior)
    coordinates = Coordinates.of(q.q if source is None else source, first(x).device)
    with torch.no_grad():
        start, shape = match_moments(q, count(x), coordinates)
    size = start.mean.shape[1]
    budget = plan_budget(asked, size) if isinstance(asked, int) else asked
    path = GaussianPath(model, x, coordinates, shape, start)
    climbed = climb_elbo(path, Noise(ids, seed, CLIMB), budget.climb, budget.samples)
    rounds = budget.rounds if budget.learns(size) else 0
    base, learned, used = improve(path, *climbed, Noise(ids, seed, ROUND), rounds, draws=budget.draws, chunk=chunk)
    path = path.around(base)
    v = Noise(ids, seed, PILOT).normal(0, budget.pilots, size, base.mean.dtype)
    rows, move = (0, budget.pilots), Noise(ids, seed, PILOT_MOVE)
    betas = make_schedule(budget.temperatures)
    steps = anneal(path, v, betas, budget.leapfrog, move, rows, steps=None, first_step=1.0).steps
    spent = budget.cost(size) - 2 * budget.draws * (rounds - used)
    return RefinedQ(path, budget, steps, learned.double(), spent)


def weigh_chains(
    refined: RefinedQ, ids: Tensor, seed: int, chunk: int | None, z: Tensor | None = None
) -> dict[str, Tensor]:
    """The columns of a batch from its weighed chains; with exact samples z of p(z|x), from chains that go backwards."""
    path, budget, steps, correlated, passes = refined
    betas = make_schedule(budget.temperatures)
    if z is not None:
        betas, steps = betas[::-1], steps.flip(0)
    tally, accepted, at = Tally(budget.chains), [], 0
    begin, move = Noise(ids, seed, START), Noise(ids, seed, MOVE, 0 if z is None else 1)
    size, dtype = path.base.mean.shape[1], path.base.mean.dtype
    for rows in cut_into_chunks(budget.chains, path.rows.x, chunk, GRAPH):
        v = begin.normal(at, rows, size, dtype) if z is None else path.start_from(z[at : at + rows])
        run = anneal(path, v, betas, budget.leapfrog, move, (at, budget.chains), steps=steps)
        tally.add(run.log_w)
        accepted.append(run.acceptance)
        at += rows
    sign = 1.0 if z is None else -1.0
    log_mean = tally.log_mean[budget.chains]
    values = (
        sign * log_mean,
        tally.ess(),
        torch.cat(accepted).mean(0),
        (log_mean - tally.mean_log()).nan_to_num(0.0),
        steps.mean(0).nan_to_num(0.0),
        correlated,
        passes,
        tally.nonfinite,
    )
    return dict(zip(COLUMNS, values, strict=True))


def list_doubts(values: Mapping[str, np.ndarray], title: str = "refine-anneal") -> list[str]:
    """One line for each reason not to trust the numbers, with what to try."""
    lines = []
    acceptance, rise = float(values["acceptance"].mean()), float(values["rise"].mean())
    if values["step_size"].any() and acceptance < 0.3:
        lines.append(
            f"{title}: {acceptance:.0%} of the moves were accepted, where about 65% is best; use more passes, so that the "
            "step size has time to adapt"
        )
    if rise > _RISE:
        lines.append(
            f"{title}: the chains of an example disagree, one alone is {rise:.1f} nats below their average, and part of as "
            "much may be missing; use more passes"
        )
    return [*lines, *list_nonfinite(values, title)]
