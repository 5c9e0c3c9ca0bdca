"""The report's tables of claims: difference, interval, verdict, and which runs no claim compares."""

import math

from bsvi.report import paper
from bsvi.report.cells import MISSING, Cell, Column, ReportTable, format_number, make_difference_cell
from bsvi.report.claims import ClaimResult
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.tables import make_slug


def make_claims_table(experiment: ExperimentRuns, lines: list[ClaimResult], beyond: bool = False) -> ReportTable:
    """One line per claim of the paper, or ``beyond`` it: difference, interval, verdict."""
    cells = []
    for line in lines:
        digits = 3 if line.interval is not None and line.interval.high - line.interval.low < 0.04 else 2
        cell = make_difference_cell(line.interval, line.claim.ratio, digits)
        unit = f" {line.claim.unit}" if cell.numbers and line.claim.unit not in ("", "times") else ""
        cells.append(
            [
                Cell(line.claim.text, detail=line.claim.subject),
                Cell(cell.text + unit, cell.numbers),
                Cell(line.verdict, mark=line.verdict, detail=line.note),
                Cell(_margin(line)),
                Cell(line.paper or MISSING),
                Cell(line.claim.where),
            ]
        )
    titles = [("Claim", False), ("Difference [95%]", True), ("Verdict", False), ("Needed", False)]
    papers = paper.TITLES[experiment.dataset] if experiment.dataset else " / ".join(paper.TITLES.values())
    titles += [(f"The paper's: {papers}", False), ("Section", False)]
    return ReportTable(
        name=f"{make_slug(experiment.name)}-claims{'-beyond' if beyond else ''}",
        title=f"Claims {'beyond' if beyond else 'of'} the paper in these runs, {experiment.name}",
        caption="Only runs that agree in all but the method and the seed are compared, "
        f"{describe_budget(experiment)}. A claim holds if the whole 95% "
        "interval says so and is contradicted if the whole interval denies it; either takes three seeds. "
        "“Close” and “at least” allow the margin given. About one in twenty intervals misses by chance.",
        columns=[Column(title, numeric=numeric) for title, numeric in titles],
        rows=cells,
        notes=describe_left_out(experiment),
        kind="claims",
    )


def describe_budget(experiment: ExperimentRuns) -> str:
    """What all runs that are compared had as much of."""
    if experiment.seconds is None:
        return "after equally many updates"
    return f"after {experiment.seconds:g} seconds of updates each (CPU time), where the paper counts updates"


def describe_left_out(experiment: ExperimentRuns) -> list[str]:
    """One note about the runs that no claim compares, and in what they differ; none where all compare."""
    rows = [f"{row.label}, {len(row.runs)} run{'s' if len(row.runs) > 1 else ''}" for row in experiment.left_out]
    return [f"Left out, as they differ from the others in more than the method: {'; '.join(rows)}."] if rows else []


def _margin(line: ClaimResult) -> str:
    if line.claim.kind == "greater":
        return "above 0"
    shown = (
        f"{math.exp(line.margin) - 1:.0%}"
        if line.claim.ratio
        else format_number(line.margin, 3 if line.margin < 0.1 else 2)
    )
    return f"within ±{shown}" if line.claim.kind == "close" else f"above −{shown}"
