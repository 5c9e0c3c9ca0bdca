"""When not to trust an estimate: the columns that say how good its weights were, and one line for each doubt."""

import math
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from bsvi.evaluation.diagnostics import HIGH_KHAT, Tally

MANY = 0.2  # the share of high k-hat that warns: with few draws one in ten is high by chance


def count_half(draws: int) -> int:
    """How many of the first draws a bound is compared with, to see whether it still rises."""
    return max(1, draws // 2)


def diagnostic_names(name: str) -> list[str]:
    """The names of what ``diagnose`` returns."""
    return [f"{name}_{what}" for what in ("ess", "khat", "rise", "nonfinite")]


def diagnose(name: str, tally: Tally) -> dict[str, Tensor]:
    """The columns by which ``list_doubts`` judges an estimator."""
    rise = tally.log_mean[tally.draws] - tally.log_mean[count_half(tally.draws)]
    return {
        f"{name}_ess": tally.ess(),
        f"{name}_khat": tally.khat(),
        f"{name}_rise": rise.nan_to_num(0.0),  # both -inf: no weight at all, which has a warning of its own
        f"{name}_nonfinite": tally.nonfinite,
    }


def share_of_high_khat(khat: np.ndarray) -> float | None:
    """The share of examples with k-hat above 0.7; None where there were too few weights to tell."""
    known = khat[~np.isnan(khat)]
    return float((known > HIGH_KHAT).mean()) if len(known) else None


def list_doubts(title: str, name: str, values: Mapping[str, np.ndarray], draws: int) -> list[str]:
    """One line for each reason not to trust an estimator, with what to try."""
    lines = []
    share, ess = share_of_high_khat(values[f"{name}_khat"]), float(np.median(values[f"{name}_ess"]))
    if share is not None and share > MANY:
        lines.append(
            f"{title}: Pareto k-hat is above {HIGH_KHAT} for {share:.0%} of the examples, so a few draws decide their "
            "value, most likely too low; use a larger k, or compare with bsvi.ais"
        )
    if ess < min(10.0, draws / 5):
        lines.append(
            f"{title}: half of the examples rest on fewer than {ess:.1f} effective weights of {draws}; use a larger k, "
            "or compare with bsvi.ais"
        )
    rise = values[f"{name}_rise"]
    mean, error = float(rise.mean()), float(rise.std() / math.sqrt(max(1, len(rise) - 1)))
    if mean > 0.1 and mean > 3 * error:
        lines.append(
            f"{title}: still rising, by {mean:.2f} ± {error:.2f} nats from {count_half(draws)} to {draws} weights, and about "
            "as much may be missing; use a larger k"
        )
    lost = int(values[f"{name}_nonfinite"].sum())
    if lost:
        examples = int((values[f"{name}_nonfinite"] > 0).sum())
        lines.append(
            f"{title}: {lost} weights of {examples} examples were not finite and count as zero; look for overflow in "
            "the decoder"
        )
    return lines


def list_nonfinite(values: Mapping[str, np.ndarray], title: str) -> list[str]:
    """One line where some chains' weights were lost."""
    lost = values.get("nonfinite", np.zeros(1))  # an old store did not count them
    if not lost.any():
        return []
    return [
        f"{title}: {int(lost.sum())} chains of {int((lost > 0).sum())} examples ended with a weight that is not finite and "
        "count as zero; look for overflow in the decoder"
    ]
