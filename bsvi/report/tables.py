"""The report's tables, in the paper's layout: scores, IWAE comparison, paired differences."""

import hashlib
import re
import unicodedata
from dataclasses import replace

from bsvi.report import paper
from bsvi.report.cells import Cell, Column, ReportTable, format_number, make_difference_cell, make_mean_cell
from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.measures import measure_rows_difference

REFERENCES = ("vae", "iwae", "svi", "bsvi")  # the methods that others are compared with
_SETS = {"test": "Test set", "train": "Training set", "valid": "Validation set"}
_LONGEST_NAME = 100  # bytes: a file's name may have 255, and ours go on
_PAGES_OWN = ("main", "notes", "page", "pause", "the-paper", "zoom")  # anchors that an experiment must not take
_OURS, _PAPERS = "these runs", "the paper"


def make_slug(text: str) -> str:
    """A text as the name of a file or an anchor: letters of any script, and a checksum wherever something was lost.

    Two names never share a file: neither two of another script, nor two that differ in signs, case or length.

    >>> make_slug("omniglot-small"), make_slug("数字"), make_slug("Omniglot (small)/β")
    ('omniglot-small', '数字', 'omniglot-small-β-8c9b41')
    """
    kept = re.sub(r"\W+", "-", unicodedata.normalize("NFC", text).lower()).strip("-")
    short = kept.encode()[:_LONGEST_NAME].decode(errors="ignore")
    if short and short == text and short not in _PAGES_OWN:
        return short
    return f"{short or 'unnamed'}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:6]}"


def make_scores_table(experiment: ExperimentRuns, split: str) -> ReportTable | None:
    """Log-likelihood, ELBO*, KL*, Reconstruction* by method, the best in bold (appendix B); None without scores."""
    rows = [row for row in experiment.rows if row.select_scored(split)]
    if not rows:
        return None
    printed = paper.read_score_tables().get((experiment.dataset or "", split))
    columns = [Column("Model", numeric=False), Column("seeds")] + [
        Column(title, _OURS) for title in paper.SCORES.values()
    ]
    columns += [Column(title, _PAPERS) for title in paper.SCORES.values()] if printed else []
    alike = [row for row in rows if not row.variant]
    best = {score: _find_best(score, {row.label: row.means(split, score) for row in alike}) for score in paper.SCORES}
    papers_best = _find_paper_best(printed, rows) if printed else {}
    cells = []
    for row in rows:
        line = [Cell(row.label), Cell(str(len(row.select_scored(split))), {"": len(row.select_scored(split))})]
        line += [make_mean_cell(row.means(split, score), row.label in best[score]) for score in paper.SCORES]
        for score in paper.SCORES if printed else ():
            line.append(_make_paper_cell(printed, row, score, papers_best))
        cells.append(line)
    notes = [printed.erratum] if printed and printed.erratum else []
    if (beyond := [row.label for row in rows if row.beyond]) and len(beyond) < len(rows):
        notes.append(f"Not one of the paper's methods: {', '.join(beyond)}.")
    return ReportTable(
        name=f"{make_slug(experiment.name)}-scores-{split}",
        title=f"{_SETS[split]}, {experiment.name}",
        caption=f"Mean ± standard deviation over seeds, in nats; the best "
        f"{'of those with the same settings ' if len(alike) < len(rows) else ''}in bold. {_estimators(rows, split)} "
        f"{_describe_paper_setting(experiment, printed)}",
        columns=columns,
        rows=cells,
        notes=notes,
    )


def make_iwae_table(experiment: ExperimentRuns, split: str = "test") -> ReportTable | None:
    """BSVI-500 beside IWAE with more and more particles, the tightest of a row in bold (appendix C)."""
    scores = {run.path: run.scores[split] for run in experiment.runs if split in run.scores}
    particles = sorted({count for entry in scores.values() for count in entry.particles})
    rows = [row for row in experiment.rows if row.select_scored(split)]
    if not particles or not rows:
        return None
    printed = paper.read_iwae_tables().get(experiment.dataset or "") if split == "test" else None
    names = ["log_likelihood"] + [f"iwae_{count}" for count in particles]
    titles = [f"BSVI-{_steps(rows, split)}"] + [f"IWAE-{count}" for count in particles]
    papers = ["", "500", "1000", "1500", "2000", "2500"] if printed else []
    columns = [Column("Model", numeric=False), Column("seeds")] + [Column(title, _OURS) for title in titles]
    columns += [Column(f"IWAE-{name}" if name else "BSVI-500", _PAPERS) for name in papers]
    cells = []
    for row in rows:
        means = [_select_complete(row, split, names).means(split, name) for name in names]
        line = _mark_tightest([make_mean_cell(found) for found in means])
        theirs = _mark_tightest([_make_paper_estimate(printed, row, name) for name in papers]) if printed else []
        cells.append([Cell(row.label), _make_seeds_cell([len(found) for found in means if found]), *line, *theirs])
    return ReportTable(
        name=f"{make_slug(experiment.name)}-iwae-{split}",
        title=f"Estimates of the log-likelihood, {experiment.name}, {split} set",
        caption="Both are lower bounds, so the higher is the tighter (bold unless tied). Mean ± standard deviation over "
        f"the seeds that have all of them, so it may differ from the table of scores. "
        f"{_describe_paper_setting(experiment, printed)}",
        columns=columns,
        rows=cells,
        notes=[printed.erratum] if printed and printed.erratum else [],
    )


def _make_seeds_cell(counts: list[int]) -> Cell:
    """How many seeds a row's means are over; a range where no seed has all of them."""
    if not counts:
        return Cell()
    low, high = min(counts), max(counts)
    return Cell(str(high) if low == high else f"{low} to {high}", {"": high})


def _select_complete(row: Row, split: str, names: list[str]) -> Row:
    """The row's runs that have every estimate, as means over different seeds do not compare; all runs if there is none."""
    whole = [run for run in row.select_scored(split) if all(run.scores[split].mean(name) is not None for name in names)]
    return replace(row, runs=whole or row.runs)


def make_differences_table(experiment: ExperimentRuns, split: str = "test") -> ReportTable | None:
    """Each method's log-likelihood minus that of the reference methods, paired, with 95% intervals."""
    rows = [row for row in experiment.rows if row.select_scored(split)]
    references = [row for row in (experiment.find_row(name) for name in REFERENCES) if row is not None and row in rows]
    if len(rows) < 2 or not references:
        return None
    cells = []
    for row in rows:
        line = [Cell(row.label)]
        for other in references:
            measured = (
                measure_rows_difference(row, other, "log_likelihood", split).interval if row is not other else None
            )
            clear = measured is not None and measured.knows_seeds and (measured.low > 0 or measured.high < 0)
            cell = make_difference_cell(measured)
            line.append(Cell(cell.text, cell.numbers, bold=clear))
        cells.append(line)
    return ReportTable(
        name=f"{make_slug(experiment.name)}-differences-{split}",
        title=f"Paired differences in log-likelihood, {experiment.name}, {split} set",
        caption="Row minus column, in nats, over the same seeds and examples, with 95% intervals for new seeds and new "
        "examples; bold where the interval leaves out 0 and there are three seeds or more.",
        columns=[Column("Model", numeric=False)] + [Column(f"minus {row.label}") for row in references],
        rows=cells,
    )


def make_paper_tables() -> list[ReportTable]:
    """All tables of the paper with their errata, for pages that have none of its data sets beside them."""
    tables = []
    for printed in [*paper.read_score_tables().values(), *paper.read_iwae_tables().values()]:
        estimates = "" in printed.rows["vae"]
        names = {"": "BSVI-500"} if estimates else dict(paper.SCORES)
        rows = [Row(method, "", []) for method in paper.ORDER]
        best = {} if estimates else _find_paper_best(printed, rows)
        cells = []
        for row in rows:
            entries = (
                [_make_paper_estimate(printed, row, name) for name in printed.rows[row.method]] if estimates else []
            )
            line = _mark_tightest(entries) or [_make_paper_cell(printed, row, score, best) for score in paper.SCORES]
            cells.append([Cell(row.label), *line])
        tables.append(
            ReportTable(
                name=f"paper-{printed.source.removeprefix('table:').replace('_', '-')}",
                title=f"The paper: {paper.TITLES[printed.dataset]}, {_SETS[printed.split].lower()}",
                caption=f"{printed.source}. {paper.SETTING}.",
                columns=[Column("Model", numeric=False)]
                + [Column(names.get(n, f"IWAE-{n}")) for n in printed.rows["vae"]],
                rows=cells,
                notes=[printed.erratum] if printed.erratum else [],
            )
        )
    return tables


def _find_best(score: str, means: dict[str, list[float]]) -> set[str]:
    known = {label: sum(values) / len(values) for label, values in means.items() if values}
    if score not in paper.HIGHER_IS_BETTER or len(known) < 2:
        return set()
    top = (max if paper.HIGHER_IS_BETTER[score] else min)(known.values())
    return {label for label, mean in known.items() if format_number(mean) == format_number(top)}


def _find_paper_best(printed: paper.PaperTable, rows: list[Row]) -> dict[str, set[str]]:
    methods = [row.method for row in rows if row.method in printed.rows]
    return {score: _find_best(score, {m: [printed.rows[m][score].value] for m in methods}) for score in paper.SCORES}


def _make_paper_cell(printed: paper.PaperTable | None, row: Row, score: str, best: dict[str, set[str]]) -> Cell:
    if printed is None or row.variant or row.method not in printed.rows:
        return Cell()
    entry = printed.rows[row.method][score]
    numbers = {"": entry.value} | ({"sd": float(entry.deviation)} if entry.deviation else {})
    text = entry.text.replace("-", "−") + (f" ± {entry.deviation}" if entry.deviation else "")
    return Cell(text, numbers, bold=row.method in best[score])


def _mark_tightest(cells: list[Cell]) -> list[Cell]:
    """The cells with the highest in bold, unless there is a tie as printed, or nothing to compare with."""
    known = [cell for cell in cells if cell.numbers]
    heads = [cell.text.split(" ")[0] for cell in known]
    top = max(known, key=lambda cell: cell.numbers[""], default=None)
    alone = top is not None and len(known) > 1 and heads.count(top.text.split(" ")[0]) == 1
    return [replace(cell, bold=alone and cell is top) for cell in cells]


def _make_paper_estimate(printed: paper.PaperTable, row: Row, name: str) -> Cell:
    if row.variant or row.method not in printed.rows:
        return Cell()
    entry = printed.rows[row.method][name]
    return Cell(entry.text.replace("-", "−"), {"": entry.value})


def _describe_paper_setting(experiment: ExperimentRuns, printed: paper.PaperTable | None) -> str:
    if printed is None:
        return "The paper has no such table." if experiment.dataset else "The paper has no numbers for these data."
    return f"The paper's ({paper.TITLES[printed.dataset]}, {printed.source}): {paper.SETTING}."


def _estimators(rows: list[Row], split: str) -> str:
    counts = sorted(
        {str(run.scores[split].summary.get("examples", "?")) for row in rows for run in row.select_scored(split)}
    )
    k = _steps(rows, split)
    return f"{' or '.join(counts)} examples; log-likelihood by BSVI-{k}, ELBO* by SVI-{k}."


def _steps(rows: list[Row], split: str) -> str:
    return "/".join(
        sorted({str(run.scores[split].summary.get("k", "?")) for row in rows for run in row.select_scored(split)})
    )
