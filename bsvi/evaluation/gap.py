"""amortization_gap(): what the encoder loses, and what the family loses, for any trained model (Cremer et al., 2018).

ln p(x) - ELBO(q_phi) = [ln p(x) - ELBO*] + [ELBO* - ELBO(q_phi)]: approximation gap + amortization gap, where ELBO* is
the best ELBO within the family, found for each example by optimisation.
"""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from bsvi.evaluation.arguments import check_counts, check_svi
from bsvi.evaluation.climb import Climb, Widen, find_best_lambda, gather_lambda, name_columns, walk_to_end
from bsvi.evaluation.doubts import diagnose, diagnostic_names, list_doubts, share_of_high_khat
from bsvi.evaluation.evaluate import encode_detached, tally_draws
from bsvi.evaluation.example_ids import Batches
from bsvi.evaluation.noise import KeyedModel
from bsvi.evaluation.passes import Progress, tabulate
from bsvi.evaluation.per_example import PerExample, Score, column
from bsvi.evaluation.scores import pack_arrays
from bsvi.examples import Nested, Pick
from bsvi.model import Model
from bsvi.refinement import SVI
from bsvi.system.files import write_atomically
from bsvi.tables.streams import find_streams

WIDEN, JUDGE = find_streams("gap", "widen", "judge")


@dataclass(frozen=True, eq=False, kw_only=True)
class Gap(PerExample):
    """What ``bsvi.amortization_gap`` returns, per example and with errors, in nats.

    log_likelihood     IWAE-k with a q fitted for it: a lower bound on ln p(x) in expectation
    elbo               the best ELBO in the family
    amortized_elbo     the encoder's
    approximation_gap  log_likelihood - elbo: what the family loses
    amortization_gap   elbo - amortized_elbo: what the encoder loses
    """

    khat_above: float | None  # the share of examples whose k-hat is above 0.7

    log_likelihood = column("log_likelihood")
    elbo = column("elbo")
    amortized_elbo = column("amortized_elbo")
    approximation_gap = column("approximation_gap")
    amortization_gap = column("amortization_gap")

    @property
    def lambda_(self) -> Float64[np.ndarray, "examples parameters"]:
        """The parameters of each example's best q, where ``keep_lambda`` asked for them."""
        return gather_lambda(self.columns)

    def save_optimum(self, path: str | PathLike[str]) -> None:
        """Write an npz file with ids, lambda_ of each example's best q, its elbo and the encoder's."""
        elbos = {name: self.columns[name] for name in ("elbo", "amortized_elbo")}
        write_atomically(Path(path), pack_arrays({"ids": self.ids, "lambda_": self.lambda_, **elbos}))

    def worst(self, n: int = 10) -> list[int]:
        """The ids of the n examples on which the encoder loses most, the worst first."""
        order = np.argsort(-self.columns["amortization_gap"], kind="stable")
        return self.ids[order[:n]].tolist()

    def summary(self) -> dict[str, Any]:
        """For JSON: each number's mean, stderr, low and high, the worst examples and the warnings."""
        return {
            "examples": len(self.ids),
            "seconds": round(self.seconds, 3),
            "seconds_per_example": round(self.seconds_per_example, 6),
            **{name: getattr(self, name).summary() for name in NAMES},
            "worst": self.worst(),
            "khat_above_0.7": self.khat_above,
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        return "\n".join(f"{name.replace('_', ' '):<18}{getattr(self, name)}" for name in NAMES)


EFFORTS = {"quick": 100, "default": 500, "thorough": 2000}  # steps of the climb, and draws
NAMES = ("log_likelihood", "elbo", "amortized_elbo", "approximation_gap", "amortization_gap")


def amortization_gap(
    model: Model,
    batches: Batches,
    steps: int | None = None,
    k: int | None = None,
    climb: SVI | None = None,
    seed: int = 0,
    *,
    chunk: int | None = None,
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    batch: Pick | None = None,
    ids: Pick | None = None,
    effort: str = "default",
    keep_lambda: bool = False,
) -> Gap:
    """The gap of ln p(x) to the encoder's ELBO, divided into the family's part and the encoder's part.

    Where no optimum found is better than the start (judged on draws of its own), the start is kept. ln p(x) comes from a
    third q, which a quarter as many steps fit to the bound itself. The other arguments are as in ``evaluate``.

    Args:
        steps: of optimisation from the encoder's q to the best q of each example; ``climb`` says how (Adam by
            default)
        k: fresh draws of each q, from which its ELBO, and for ln p(x) IWAE-k, is taken
        effort: what steps and k are where they are not given: 100 each for "quick", 500 for "default", 2000 for
            "thorough"
        keep_lambda: add the best q's parameters to the columns, as lambda_0, lambda_1, ...

    Returns:
        A ``Gap``: each part per example, in nats, with errors and warnings.

    Example:
        >>> import torch
        >>> from bsvi import VAE
        >>> model = VAE(torch.nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> gap = amortization_gap(model, torch.ones(6, 3), steps=50, k=50)
        >>> gap.amortization_gap.mean > 0, len(gap.worst(2))
        (True, 2)
    """
    if effort not in tuple(EFFORTS):
        raise ValueError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}")
    steps, k = EFFORTS[effort] if steps is None else steps, EFFORTS[effort] if k is None else k
    seed, steps, k = check_counts(seed, chunk, steps=steps, k=k)
    check_svi("climb", climb)
    given = Climb(steps=steps) if climb is None else climb
    widen, widths = Widen(steps=max(1, given.steps // 4)), set[int]()

    def split_batch(x: Nested, names: Tensor) -> dict[str, Tensor]:
        lambda_0 = encode_detached(model, x, names, seed)
        lambda_, gain = find_best_lambda(model, x, names, lambda_0, given, seed, draws=k, chunk=chunk)
        wide = walk_to_end(widen, KeyedModel(model, seed, WIDEN, names), x, lambda_)
        tally, elbo, amortized = (  # the same noise for all three: their differences are less noisy than they are
            tally_draws(KeyedModel(model, seed, JUDGE, names), x, at, (k,), chunk) for at in (wide, lambda_, lambda_0)
        )
        log_p, best_elbo, own_elbo = tally.log_mean[k], elbo.mean_log(), amortized.mean_log()
        values = (log_p, best_elbo, own_elbo, log_p - best_elbo, best_elbo - own_elbo)
        columns = dict(zip(NAMES, values, strict=True)) | {"climb_gain": gain} | diagnose("iwae", tally)
        return columns | (name_columns(lambda_, widths) if keep_lambda else {})

    question = {"what": "gap", "version": 1, "k": k, "seed": seed, "climb": str(given), "widen": str(widen)}
    question |= {"lambda": True} if keep_lambda else {}
    columns = [*NAMES, "climb_gain", *diagnostic_names("iwae")]
    table = tabulate(
        model, batches, split_batch, question, store, progress, picks=(batch, ids), columns=columns, climb=given
    )
    warnings = list_doubts(f"ln p (IWAE-{k})", "iwae", table.values, k)
    gain = Score(table.values["climb_gain"], table.ids)
    if gain.mean > 0.1 and not gain.mean < 3 * gain.stderr:
        warnings.append(
            f"the best ELBO still rises, by {gain.mean:.2f} nats in {max(1, given.steps // 4)} further steps, so the "
            "encoder loses more than is said here and the family less; use more steps"
        )
    return Gap(**table.as_result(*warnings), khat_above=share_of_high_khat(table.values["iwae_khat"]))
