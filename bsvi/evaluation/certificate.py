"""certify(): how far ``refine_anneal`` can be off, by simulation (bidirectional Monte Carlo, Grosse et al., 2015).

Draw z ~ p(z) and x ~ p(x|z) from the model itself: z is then an exact sample of p(z|x). Chains from q* bound ln p(x) from below,
and the same chains run backwards from z bound it from above, both in expectation. The mean difference bounds the error of the
estimate on images of the model's own. The base and the step sizes come from x alone, never from z.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bsvi.draws import posterior
from bsvi.evaluation.arguments import check_counts
from bsvi.evaluation.budget import Budget
from bsvi.evaluation.evaluate import encode_detached
from bsvi.evaluation.passes import Progress, evaluation_mode, tabulate
from bsvi.evaluation.per_example import PerExample, Score, column
from bsvi.evaluation.priors import Prior, resolve_prior
from bsvi.evaluation.refine_anneal import list_doubts, refine, weigh_chains
from bsvi.examples import Nested, count, first
from bsvi.model import Model
from bsvi.refinement import PAPER_BATCH

TIGHTER = 10  # times the passes go into the bound from above, which needs not be as cheap as what it judges
COLUMNS = ("lower", "upper", "acceptance", "rise", "step_size", "nonfinite", "passes")


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificate(PerExample):
    """What ``bsvi.certify`` returns: ``lower`` and ``upper`` bounds of ln p(x) on the model's own images, and their ``gap``."""

    lower = column("lower")
    upper = column("upper")

    @cached_property
    def gap(self) -> Score:
        return self.upper - self.lower

    @property
    def median(self) -> float:
        """The gap of the image in the middle: far below the mean where few images, of a mode that no chain found, make it."""
        return float(np.median(self.gap.per_example))

    @property
    def passes(self) -> int:
        return int(self.columns["passes"].mean())

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        scores = {name: getattr(self, name).summary() for name in ("gap", "lower", "upper")}
        about = {"images": len(self.ids), "passes": self.passes, "seconds": round(self.seconds, 3)}
        return {**about, **scores, "median": self.median, "warnings": list(self.warnings)}

    def __str__(self) -> str:
        return (
            f"on {len(self.ids)} images of the model's own the estimate is at most {self.gap.mean:.2f} "
            f"[{self.gap.low:.2f}, {self.gap.high:.2f}] nats too low, on average (median {self.median:.2f})"
        )


def certify(
    model: Model,
    like: Nested,
    sample: Callable[[Tensor], Nested],
    images: int = 100,
    passes: int = 1000,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    prior: Prior | None = None,
    batch_size: int = PAPER_BATCH,
    chunk: int | None = None,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The gap of ``refine_anneal`` between its bounds from below and from above, on ``images`` drawn from the model.

    Args:
        like: a batch of examples, which say what x and z look like; no number depends on them
        sample: ``sample(z)`` draws one x ~ p(x|z) for each row of z, with torch's own generator
        passes: as in ``refine_anneal``: the certificate is of the same estimate at the same cost; the bound from
            above takes ten times as many, as all of its own error counts as the estimate's
        budget: as in ``refine_anneal``, and for both bounds
        prior: the distribution of one z, to draw from; found by itself for a unit Gaussian and for VAE(prior=...)
        batch_size: images drawn and judged at once: other images with another one

    Returns:
        The certificate: the gap per image, with its mean and error.

    Example:
        >>> from bsvi import VAE
        >>> model = VAE(torch.nn.Linear(1, 2), lambda x, z: -0.5 * ((x - z).square() + 1.837877).sum(-1))
        >>> certify(model, torch.zeros(1, 1), lambda z: torch.normal(z, 1.0), images=20).gap.mean < 0.1
        True
    """
    seed, images, passes, rows = check_counts(seed, chunk, images=images, passes=passes, batch_size=batch_size)
    z, batches = draw_pairs(model, like, sample, images, seed, prior, batch_size=rows)

    def bracket(x: Nested, ids: Tensor) -> dict[str, Tensor]:
        refined = refine(model, x, ids, passes if budget is None else budget, seed, prior, chunk=chunk)
        low = weigh_chains(refined, ids, seed, chunk)
        tight = refined if budget is not None else refine(model, x, ids, TIGHTER * passes, seed, prior, chunk=chunk)
        high = weigh_chains(tight, ids, seed, chunk, z[ids].expand(tight.budget.chains, *(-1,) * z.ndim))
        both = {name: torch.maximum(low[name], high[name]) for name in ("rise", "nonfinite")}
        rest = {name: low[name] for name in ("acceptance", "step_size", "passes")}
        return {"lower": low["log_likelihood"], "upper": high["log_likelihood"], **both, **rest}

    asked = {"passes": passes} if budget is None else dict(vars(budget))
    question = {"what": "certificate", "version": 4, "seed": seed, **asked, "prior": str(prior)}
    table = tabulate(model, batches, bracket, question, store, progress, columns=COLUMNS, prior=prior)
    return Certificate(**table.as_result(*list_doubts(table.values)))


def draw_pairs(
    model: Model,
    like: Nested,
    sample: Callable[[Tensor], Nested],
    images: int,
    seed: int,
    prior: Prior | None,
    *,
    batch_size: int,
) -> tuple[Tensor, list[Nested]]:
    """All z ~ p(z), and x ~ p(x|z) in batches: of the model's own, and functions of the seed and the batch size."""
    device = first(like).device
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        shape = posterior(model, encode_detached(model, like), like).event_shape
        source = resolve_prior(model, like, shape, prior)
        if source.batch_shape:
            raise ValueError(
                "certify draws z without an x, and this model's prior depends on x; give another prior=..."
            )
        torch.manual_seed(seed)
        z = source.sample(torch.Size((images,))).to(device)
        drawn = [sample(part) for part in z.split(batch_size)]
    if any(count(x) != len(part) for x, part in zip(drawn, z.split(batch_size), strict=True)):
        raise ValueError(f"sample(z) must return one x for each of the {batch_size} rows of z, got {count(drawn[0])}")
    return z, drawn
