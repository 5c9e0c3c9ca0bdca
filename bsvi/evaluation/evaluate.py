"""evaluate(): the paper's test numbers for any model, exact in k, in memory that does not grow with k."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bsvi.beyond.with_refinement import WithRefinement
from bsvi.draws import closed_form_kl, draw, encode, log_prior, posterior, weigh, weigh_draw
from bsvi.evaluation.arguments import check_at_least_1, check_counts, check_svi
from bsvi.evaluation.diagnostics import Tally
from bsvi.evaluation.doubts import count_half, diagnose, diagnostic_names, list_doubts, share_of_high_khat
from bsvi.evaluation.example_ids import Batches
from bsvi.evaluation.noise import KeyedModel
from bsvi.evaluation.passes import ExampleTable, Progress, tabulate
from bsvi.evaluation.per_example import Score
from bsvi.evaluation.scores import Scores
from bsvi.examples import Nested, Pick, repeat, tensors
from bsvi.model import Model, uses_x
from bsvi.refinement import SVI
from bsvi.tables.estimators import ESTIMATORS, check_estimators
from bsvi.tables.streams import find_streams

SCORES = ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo")
WALK, IWAE, LAST, TRAINED = find_streams("evaluate", "walk", "iwae", "last", "trained")
_CALL_BYTES = 64 * 2**20  # what one decoder call without a graph may take ...
_ACTIVATIONS = 256  # ... if the decoder holds about this many numbers per number of x


def evaluate(
    model: Model,
    batches: Batches,
    k: int = 500,
    svi: SVI | None = None,
    iwae: Iterable[int] | int | None = None,
    seed: int = 0,
    *,
    chunk: int | None = None,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    elbo_draws: int = 32,
    batch: Pick | None = None,
    ids: Pick | None = None,
    estimators: Iterable[str] = (),
    passes: int = 1000,
) -> Scores:
    """Log-likelihood (BSVI-k, uniform pi), ELBO*, KL*, Reconstruction*, amortized ELBO and IWAE-n, per example.

    beta is 1, the model is in evaluation mode. Noise belongs to the example (seed, id), not to its place in a batch. A model that
    was trained end to end is given as ``WithRefinement(model, objective.refinement)``: lambda_0 is where its trained steps end.

    Args:
        batches: yields x: a tensor, or a nesting of dicts, tuples and lists of tensors (batch, ...); or objects
            with ``.x`` and ``.ids``; or it is all examples at once, a tensor or a dict
        batch: a function that takes x out of any other batch: ``batch=lambda b: b[0]`` for a loader of (x, y)
        ids: a function that takes the ids out of it
        svi: how to refine; its ``steps`` are replaced by k
        iwae: the numbers of draws n (or one), by default k, 2k, 3k, 4k, 5k; the first n draws of one sequence; ()
            for none
        chunk: draws per decoder call of the parts without gradients; no number depends on it
        store: a file that keeps finished examples: run again after a kill, and it goes on
        progress: called after every batch with the number of examples done; without it a terminal shows that number
        estimators: further estimators of ln p(x): "refine-anneal", "ais"; their scores are in ``.estimates``
        passes: of the decoder for one example, which refine-anneal may take
        elbo_draws: draws of the last proposal over which Reconstruction* is averaged

    Returns:
        ``Scores``: one number per example for each score, with means, errors and warnings.

    Example:
        >>> from bsvi import VAE
        >>> model = VAE(torch.nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> scores = evaluate(model, torch.zeros(6, 3), k=20)
        >>> scores.log_likelihood.per_example.shape, list(scores.iwae), scores.elbo.mean <= scores.log_likelihood.mean
        ((6,), [20, 40, 60, 80, 100], True)
    """
    seed, k, elbo_draws, passes = check_counts(seed, chunk, k=k, elbo_draws=elbo_draws, passes=passes)
    check_svi("svi", svi)
    svi = replace(SVI() if svi is None else svi, steps=k)
    iwae = range(k, 5 * k + 1, k) if iwae is None else iwae if isinstance(iwae, Iterable) else (iwae,)
    counts = tuple(sorted({check_at_least_1("iwae", n) for n in iwae}))
    asked = check_estimators(estimators)
    if asked and isinstance(batches, Iterator):
        raise ValueError("estimators go through the batches once more, and a generator can be read once; give a list")

    def score_batch(x: Nested, names: Tensor) -> dict[str, Tensor]:
        lambda_0 = encode_detached(model, x, names, seed)
        values, lambda_k = walk_svi(KeyedModel(model, seed, WALK, names), x, lambda_0, svi)
        last = KeyedModel(model, seed, LAST, names)
        values |= split_elbo(last, x, lambda_k, elbo_draws, chunk)
        if counts:
            values |= estimate_iwae(KeyedModel(model, seed, IWAE, names), x, lambda_0, counts, chunk)
        return values

    question = {
        "what": "evaluate",
        "version": 1,
        "k": k,
        "seed": seed,
        "svi": {name: str(value) for name, value in asdict(svi).items()},
        "refinement": type(svi).__qualname__,
        "iwae": list(counts),
        "elbo_draws": elbo_draws,
    }
    columns = [*SCORES, *diagnostic_names("bsvi"), *(f"iwae_{n}" for n in counts)]
    columns += diagnostic_names("iwae") if counts else []
    table = tabulate(
        model, batches, score_batch, question, store, progress, picks=(batch, ids), columns=columns, svi=svi
    )
    scores = make_scores(table, k, seed, max(counts, default=0), svi)
    for name in asked:
        beside = None if store is None else Path(store).with_name(f"{ESTIMATORS[name].name(passes)}-{Path(store).name}")
        options = {"seed": seed, "chunk": chunk, "store": beside, "progress": progress, "batch": batch, "ids": ids}
        estimate = ESTIMATORS[name].run(model, batches, passes, **options)
        scores = scores.with_estimate(ESTIMATORS[name].name(passes), estimate)
    return scores


def encode_detached(model: Model, x: Nested, ids: Tensor | None = None, seed: int = 0) -> Tensor:
    """lambda_0 = f_phi(x), without a graph; with ``ids`` the trained refinement of a ``WithRefinement`` goes on from there."""
    with torch.no_grad():
        if not isinstance(model, WithRefinement):
            return encode(model, x)
        return encode(model.model, x) if ids is None else model.encode(x, KeyedModel(model.model, seed, TRAINED, ids))


def walk_svi(model: Model, x: Nested, lambda_: Tensor, svi: SVI) -> tuple[dict[str, Tensor], Tensor]:
    """BSVI-k from the streamed walk of Algorithm 1, with what is needed to judge it, and the last lambda."""
    draws = (svi.steps + 1) * svi.samples  # with m samples each has pi_i / m: the plain average again
    tally, amortized = Tally(draws, marks=(count_half(draws),)), Tally(svi.samples)
    for step in svi.walk(model, x, lambda_):
        tally.add(step.weighed.log_w)
        if amortized.count == 0:
            amortized.add(step.weighed.log_w)
        lambda_ = step.lambda_
    values = {"log_likelihood": tally.log_mean[draws], "amortized_elbo": amortized.mean_log()}
    return values | diagnose("bsvi", tally), lambda_


def split_elbo(model: Model, x: Nested, lambda_: Tensor, draws: int, chunk: int | None) -> dict[str, Tensor]:
    """ELBO* of q(z; lambda) as -(Reconstruction* + KL*), exactly.

    Reconstruction* is averaged over fresh draws, KL* is the closed form, or the average over the same draws.
    """
    log_lik = log_ratio = torch.zeros(len(lambda_), dtype=torch.float64, device=lambda_.device)
    with torch.no_grad():
        q = posterior(model, lambda_, x)
        for rows in cut_into_chunks(draws, x, chunk):
            drawn = draw(q, rows, len(lambda_))
            log_lik = log_lik + weigh_draw(model, x, drawn).log_lik.sum(0)
            log_p = log_prior(model, drawn.z.flatten(0, 1), repeat(x, rows) if uses_x(model) else x).view_as(
                drawn.log_q
            )
            log_ratio = log_ratio + (drawn.log_q - log_p).double().sum(0)
        kl = closed_form_kl(model, q, x)
    kl = log_ratio / draws if kl is None else kl.double()
    reconstruction = -log_lik / draws
    return {"elbo": -(reconstruction + kl), "kl": kl, "reconstruction": reconstruction}


def estimate_iwae(
    model: Model, x: Nested, lambda_: Tensor, counts: tuple[int, ...], chunk: int | None
) -> dict[str, Tensor]:
    """IWAE-n for each n of ``counts`` and the amortized ELBO, from max(counts) draws of q(z; lambda)."""
    tally = tally_draws(model, x, lambda_, counts, chunk)
    values = {f"iwae_{n}": tally.log_mean[n] for n in counts}
    return values | {"amortized_elbo": tally.mean_log()} | diagnose("iwae", tally)


def tally_draws(model: Model, x: Nested, lambda_: Tensor, counts: tuple[int, ...], chunk: int | None) -> Tally:
    """The tally of max(counts) independent draws of q(z; lambda), without graphs."""
    draws = max(counts)
    tally = Tally(draws, marks=(*counts, count_half(draws)))
    with torch.no_grad():
        q = posterior(model, lambda_, x)
        for rows in cut_into_chunks(draws, x, chunk):
            tally.add(weigh(model, x, q, rows).log_w)
    return tally


def cut_into_chunks(draws: int, x: Nested, chunk: int | None, cost: int = 1) -> Iterable[int]:
    """``draws`` cut into chunks; the default depends on the size of x alone, never on ``draws``."""
    if chunk is None:
        size = sum(tensor.numel() for _, tensor in tensors(x))
        chunk = max(1, _CALL_BYTES // (cost * _ACTIVATIONS * 4 * max(1, size)))
    return (min(chunk, draws - at) for at in range(0, draws, chunk))


def make_scores(table: ExampleTable, k: int, seed: int, draws: int, svi: SVI) -> Scores:
    """The table as Scores, with diagnostics and warnings."""
    names = {"bsvi": f"log-likelihood (BSVI-{k})", "iwae": f"IWAE-{draws}"}
    numbers = {"bsvi": (k + 1) * svi.samples, "iwae": draws}
    present = [name for name in names if f"{name}_ess" in table.values]
    diagnostics: dict[str, Any] = {
        f"{name}_ess": Score(table.values[f"{name}_ess"], table.ids).summary() for name in present
    }
    diagnostics["khat_above_0.7"] = {name: share_of_high_khat(table.values[f"{name}_khat"]) for name in present}
    warnings = [line for name in present for line in list_doubts(names[name], name, table.values, numbers[name])]
    if svi.clip == "batch":
        warnings.append('SVI(clip="batch") couples the examples of a batch: numbers depend on the batching')
    return Scores(**table.as_result(*warnings), k=k, seed=seed, diagnostics=diagnostics)
