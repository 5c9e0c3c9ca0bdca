"""Tables about the runs themselves: what each method cost, and the state that each run is in."""

import math

from bsvi.report.cells import MISSING, Cell, Column, ReportTable, format_number, make_mean_cell
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.records import SplitScores, to_number
from bsvi.report.runs import SPLITS
from bsvi.report.tables import make_slug


def make_cost_table(experiment: ExperimentRuns) -> ReportTable | None:
    """Decoder calls and time per step, and their ratio to the VAE, beside the log-likelihood."""
    rows = [row for row in experiment.rows if row.pace]
    if not rows:
        return None
    reference = experiment.find_row("vae")
    base = reference.pace if reference else None
    cells = []
    for row in rows:
        calls, seconds = _mean([run.per_step("decoder_calls") for run in row.runs]), row.pace
        total = _mean([to_number((run.result or {}).get("seconds")) for run in row.runs])
        ratio = seconds / base if seconds and base else None
        cells.append(
            [
                Cell(row.label),
                _cell(calls, 0 if calls is None or calls == round(calls) else 1),
                _cell(seconds and seconds * 1000, 1),
                _cell(ratio, 2),
                _cell(_mean([float(run.steps) for run in row.runs]), 0),
                _cell(total and total / 60, 1),
                make_mean_cell(row.means("test", "log_likelihood")),
            ]
        )
    names = ["decoder calls per step", "ms per step", "time, ratio to VAE", "steps", "minutes", "test log-likelihood"]
    return ReportTable(
        name=f"{make_slug(experiment.name)}-cost",
        title=f"Cost, {experiment.name}",
        caption="Means over seeds; of the times per step the fastest seed's, as other work on the machine only adds. "
        "Decoder calls are per example.",
        columns=[Column("Model", numeric=False)] + [Column(name) for name in names],
        rows=cells,
    )


def make_runs_table(experiment: ExperimentRuns) -> ReportTable:
    """Every run: state, steps, best validation bound, and where it lies."""
    cells = []
    origins = any(run.origin for run in experiment.runs)
    several = any(scores.results > 1 for run in experiment.runs for scores in run.scores.values())
    for row in experiment.rows:
        for run in row.runs:
            best = to_number((run.result or {}).get("best_valid_bound"))
            bests = [to_number(line.get("bound")) for line in run.valid]
            best = max((bound for bound in bests if bound is not None), default=None) if best is None else best
            seconds = to_number((run.result or {}).get("seconds")) or to_number(
                run.train[-1].get("seconds") if run.train else None
            )
            cells.append(
                [
                    Cell(row.label),
                    Cell(str(run.seed), {"": run.seed}) if "seed" in run.config else Cell(),
                    Cell(run.state, mark=run.state),
                    Cell(f"{run.steps:,}", {"": run.steps}),
                    _cell(best, 2),
                    _cell(seconds and seconds / 60, 1),
                    Cell(str((run.result or {}).get("stopped", MISSING))),
                    *([Cell(run.origin or MISSING)] if origins else []),
                    *([Cell(_choices(run.scores) or MISSING)] if several else []),
                    Cell(str(run.path)),
                ]
            )
    titles = [("Model", False), ("seed", True), ("state", False), ("steps", True), ("best validation bound", True)]
    titles += [("minutes", True), ("stopped by", False)] + [("origin", False)] * origins
    titles += [("scores shown", False)] * several + [("folder", False)]
    return ReportTable(
        name=f"{make_slug(experiment.name)}-runs",
        title=f"Runs, {experiment.name}",
        caption="The bound is the method's own, so only seeds of one method compare.",
        columns=[Column(title, numeric=numeric) for title, numeric in titles],
        rows=cells,
    )


def _choices(scores: dict[str, SplitScores]) -> str:
    """Which of the results in a run folder are shown."""
    return "; ".join(f"{split}: {scores[split].choice}" for split in SPLITS if split in scores)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _cell(value: float | None, digits: int) -> Cell:
    return Cell() if value is None else Cell(format_number(value, digits), {"": value})
