"""refine(): the best q of every example, as a result: a better representation than the encoder's."""

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from bsvi.beyond.with_refinement import WithRefinement
from bsvi.draws import posterior
from bsvi.evaluation.arguments import check_counts, check_svi
from bsvi.evaluation.climb import Climb, find_best_lambda, gather_lambda, name_columns
from bsvi.evaluation.evaluate import encode_detached, tally_draws
from bsvi.evaluation.example_ids import Batches
from bsvi.evaluation.gap import JUDGE
from bsvi.evaluation.noise import KeyedModel
from bsvi.evaluation.passes import Progress, evaluation_mode, tabulate, to_device_of
from bsvi.evaluation.per_example import PerExample, Score, column
from bsvi.examples import Nested, Pick, count, take, unpack
from bsvi.model import Model, takes_x
from bsvi.refinement import SVI

_ELBO_DRAWS = 100  # fresh draws from which an ELBO is taken


@dataclass(frozen=True, eq=False, kw_only=True)
class RefinedPosterior(PerExample):
    """What ``bsvi.refine`` returns; rows are examples, ordered by id.

    elbo            of the refined q
    amortized_elbo  of the encoder's
    gain            their difference, with the same noise
    """

    model: Model
    dtype: torch.dtype = torch.float32

    @property
    def lambda_(self) -> Tensor:
        """The parameters of each refined q, (examples, parameters)."""
        return torch.as_tensor(gather_lambda(self.columns)).to(self.dtype)

    elbo = column("elbo")
    amortized_elbo = column("amortized_elbo")

    @cached_property
    def gain(self) -> Score:
        return self.elbo - self.amortized_elbo

    def q(self, x: Nested = None) -> Any:
        """The refined distributions; those of a ``bsvi.wrap`` as it was given. A family that depends on x needs x, too."""
        own = getattr(self.model, "distributions", None)
        inner: Any = self.model.model if isinstance(self.model, WithRefinement) else self.model
        by_x = takes_x(inner.family if hasattr(inner, "family") else inner.posterior)
        if by_x and (x is None or count(x) != len(self.ids)):
            given = "none" if x is None else f"{count(x)}"
            raise ValueError(
                f"this posterior family depends on x; give all {len(self.ids)} examples in the order of ids, got {given}: "
                "refined.q(x)"
            )
        return posterior(self.model, self.lambda_, x) if own is None else own(self.lambda_)

    @property
    def mean(self) -> Any:
        """The means of the refined q: representations of the examples; by name where there are several latent sites."""
        q = self.q()
        try:
            return {name: site.mean for name, site in q.items()} if isinstance(q, dict) else q.mean
        except NotImplementedError:
            raise ValueError(
                "this posterior family knows no mean; average draws: refined.q().sample((100,)).mean(0)"
            ) from None

    def __str__(self) -> str:
        return f"ELBO {self.elbo}, gained {self.gain}, {1000 * self.seconds_per_example:.3g} ms per example"


def refine(
    model: Model,
    batches: Batches,
    steps: int = 500,
    climb: SVI | None = None,
    seed: int = 0,
    chunk: int | None = None,
    *,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    batch: Pick | None = None,
    ids: Pick | None = None,
) -> RefinedPosterior:
    """The best q within the family for every example, found by optimisation from the encoder's, and how much ELBO it gained.

    Args:
        model: any ``Model``; it is not changed.
        batches: one batch or many, as in ``evaluate``; so are seed, chunk, progress, batch and ids.
        steps: of the climb to the best q; ``climb`` says how (Adam by default).
        store: a file that keeps finished examples: run again after a kill, and it goes on.

    Returns:
        lambda, the distributions and their means, ELBOs before and after. The start is kept where nothing better was found.

    Example:
        >>> from bsvi import VAE
        >>> model = VAE(torch.nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> refined = refine(model, torch.ones(6, 3), steps=50)
        >>> refined.mean.shape, refined.gain.mean > 0
        (torch.Size([6, 2]), True)
    """
    seed, steps = check_counts(seed, chunk, steps=steps)
    check_svi("climb", climb)
    given, seen, widths = Climb(steps=steps) if climb is None else climb, list[Nested](), set[int]()

    def refine_batch(x: Nested, names: Tensor) -> dict[str, Tensor]:
        lambda_0 = encode_detached(model, x, names, seed)
        lambda_, _ = find_best_lambda(model, x, names, lambda_0, given, seed, draws=_ELBO_DRAWS, chunk=chunk)
        elbo, amortized = (
            tally_draws(KeyedModel(model, seed, JUDGE, names), x, at, (_ELBO_DRAWS,), chunk).mean_log()
            for at in (lambda_, lambda_0)
        )
        return {"elbo": elbo, "amortized_elbo": amortized} | name_columns(lambda_, widths)

    def pick(given: Any) -> Nested:
        x, _ = unpack(given, batch)
        seen[:] = seen or [take(x, slice(2))]
        return x

    def name(given: Any) -> Any:
        return unpack(given, batch, ids)[1]

    question = {"what": "refine", "version": 1, "seed": seed, "climb": str(given)}
    columns = ("elbo", "amortized_elbo", "lambda_0")
    table = tabulate(
        model, batches, refine_batch, question, store, progress, picks=(pick, name), columns=columns, climb=given
    )
    # all may have come from the store: the model sees some x, and says what lambda is like
    with evaluation_mode(model):
        dtype = encode_detached(model, to_device_of(model, seen[0])).dtype
    return RefinedPosterior(**table.as_result(), model=model, dtype=dtype)
