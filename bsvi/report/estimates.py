"""All estimates of ln p(x) that one evaluation has, side by side with their cost, and which of them to publish."""

import math
from dataclasses import dataclass
from typing import Any

from bsvi.report.cells import Cell, Column, ReportTable, make_mean_cell
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.tables import make_slug

MARGIN = 2.0  # standard errors by which one estimate must be above another to be called higher


@dataclass(frozen=True)
class EstimatorRow:
    """One estimator's number of one evaluation: its mean over ``images``, and passes of the decoder for each of them."""

    name: str
    mean: float
    low: float
    high: float
    passes: int
    images: int
    rise: float = math.nan  # what single chains are below their average: large where the number is still too low
    minus_bsvi: float = math.nan  # in pairs, of the same images
    minus_error: float = math.nan


def list_estimates(entry: dict[str, Any]) -> list[EstimatorRow]:
    """BSVI-k, IWAE-n, and all further estimators of an entry of scores.json; what is damaged is left out."""
    k, images = _whole(entry.get("k")), _whole(entry.get("examples"))
    found = [_read(f"BSVI-{k}", entry.get("log_likelihood"), 2 * k + 1, images)]
    draws = entry.get("iwae")
    for count, part in draws.items() if isinstance(draws, dict) else ():
        if str(count).isdigit():
            found.append(_read(f"IWAE-{int(count)}", part, int(count), images))
    further = entry.get("estimates")
    for name, part in further.items() if isinstance(further, dict) else ():
        if isinstance(part, dict):
            found.append(_read(str(name), part, _whole(part.get("passes")), _whole(part.get("images"))))
    return [estimate for estimate in found if estimate is not None]


def choose_estimate(estimates: list[EstimatorRow]) -> EstimatorRow | None:
    """The number to publish: of the most images, then refine-anneal of the most passes, then BSVI-k.

    The rule does not look at the values: the highest of several noisy numbers would be too high.
    """

    def order(estimate: EstimatorRow) -> tuple[int, int, int]:
        kind = 2 if estimate.name.startswith("refine-anneal") else 1 if estimate.name.startswith("BSVI") else 0
        return estimate.images, kind, estimate.passes

    return max(estimates, key=order, default=None)


def say_which(entry: dict[str, Any]) -> str:
    """In words, which number to publish and what speaks against it."""
    estimates = list_estimates(entry)
    best = choose_estimate(estimates)
    if best is None:
        return ""
    text = f"Publish {best.name}, {best.mean:.2f} [{best.low:.2f}, {best.high:.2f}]"
    text += f", of {best.images} images. It is a lower bound on ln p(x) in expectation"
    gap = _read_gap(entry, best)
    if gap is not None:
        text += f"; on images of the model's own it is at most {gap[0]:.2f} [{gap[1]:.2f}, {gap[2]:.2f}] nats too low"
    text += "."
    if best.name.startswith("BSVI"):
        text += " refine-anneal (`--estimator refine-anneal`) is tighter at the same cost."
    elif best.rise > 0.5:
        text += f" Its chains disagree by {best.rise:.1f} nats, so it is still too low; use more passes."
    if best.minus_bsvi < -MARGIN * best.minus_error:
        text += f" BSVI is {-best.minus_bsvi:.2f} nats above it, beyond error: use more passes."
    return text


def _read_gap(entry: dict[str, Any], best: EstimatorRow) -> tuple[float, float, float] | None:
    """The certificate of this estimator at this cost."""
    part = entry.get("certificate")
    if not isinstance(part, dict) or part.get("estimator") != best.name or not isinstance(part.get("gap"), dict):
        return None
    numbers = tuple(_number(part["gap"].get(name)) for name in ("mean", "low", "high"))
    return (numbers[0], numbers[1], numbers[2]) if all(map(math.isfinite, numbers)) else None


def _read(name: str, part: Any, passes: int, images: int) -> EstimatorRow | None:
    if not isinstance(part, dict) or not math.isfinite(mean := _number(part.get("mean"))):
        return None
    about, difference = _part(part, "diagnostics"), _part(part, "minus_bsvi")
    extra = (_number(about.get("rise")), _number(difference.get("mean")), _number(difference.get("stderr")))
    return EstimatorRow(name, mean, _number(part.get("low")), _number(part.get("high")), passes, images, *extra)


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, dict) else {}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else 0


def make_estimates_table(experiment: ExperimentRuns, split: str = "test") -> ReportTable | None:
    """Every estimator of ln p(x) side by side with its cost, where some run has more of them than BSVI-k and IWAE."""
    found = {
        run.path: {each.name: each for each in list_estimates(run.scores[split].summary)}
        for run in experiment.runs
        if split in run.scores and any(run.scores[split].summary.get(name) for name in ("estimates", "certificate"))
    }
    if not found:
        return None
    passes = {each.name: each.passes for estimates in found.values() for each in estimates.values()}
    names = sorted(passes, key=lambda name: (passes[name], name))
    columns = [Column("Model", numeric=False), Column("seeds"), *(Column(f"{n} ({passes[n]:,} passes)") for n in names)]
    cells = []
    for row in experiment.rows:
        runs = [run for run in row.runs if run.path in found]
        if not runs:
            continue
        means = [[found[run.path][name].mean for run in runs if name in found[run.path]] for name in names]
        gaps = [gap for run in runs if (gap := _read_certificate_gap(run.scores[split].summary)) is not None]
        chosen = choose_estimate(list(found[runs[0].path].values()))
        bold = [chosen is not None and name == chosen.name for name in names]
        line = [make_mean_cell(values, mark) for values, mark in zip(means, bold, strict=True)]
        cells.append([Cell(row.label), Cell(str(len(runs)), {"": len(runs)}), *line, make_mean_cell(gaps)])
    return ReportTable(
        name=f"{make_slug(experiment.name)}-estimates-{split}",
        title=f"Estimators of the log-likelihood, {experiment.name}, {split} set",
        caption="All are lower bounds on ln p(x) in expectation, with the passes of the decoder that an image costs (a "
        "gradient counts two). Publish the bold one: refine-anneal of the most passes, chosen by this rule and not by its "
        "value, as the highest of several noisy numbers would be too high. The last column bounds what refine-anneal is too "
        "low by, on images drawn from the model.",
        columns=[*columns, Column("at most too low by")],
        rows=cells,
    )


def _read_certificate_gap(entry: dict[str, Any]) -> float | None:
    gap = _number(_part(_part(entry, "certificate"), "gap").get("mean"))
    return gap if math.isfinite(gap) else None
