"""The paper's tables beside the published runs: results/reproduction.md.

    ./run python benchmarks/reproduction.py

For each of the paper's data sets there are two tables: log-likelihood, and KL* (use of the latent). Each has a row for each
method and columns for the paper, for results/NAME-small and for results/NAME-mlp, where these are there. A difference is paired
by seed and image, with the interval by which the report judges claims (bsvi/report/measures.py). The last table is what
``bsvi plan`` says of the paper's experiments at full size.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bsvi.commands import plan
from bsvi.experiments.config import EXPERIMENTS
from bsvi.report import archive, paper
from bsvi.report.cells import Cell, Column, ReportTable, format_number, make_difference_cell, make_mean_cell
from bsvi.report.claim_tables import describe_left_out
from bsvi.report.claims import NOT_SHOWN, reach_verdict
from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.intervals import Interval
from bsvi.report.measures import compare_pairs, pair_by_seed
from bsvi.report.records import ReportedRun
from bsvi.report.render import to_markdown
from bsvi.tables.methods import METHODS, find_label

NETWORKS = {"small": "small PixelCNN", "mlp": "fully connected"}  # results/NAME-small and results/NAME-mlp
TABLES = {"log_likelihood": "log-likelihood", "kl": "KL*, use of the latent"}
REFERENCE = "svi"  # what the paper improves on
PAPER = "the paper"
ABOUT = (
    f"Test set, in nats, mean ± standard deviation over seeds. The paper's setting: {paper.SETTING}.\n"
    "Differences are paired by seed and image, with 95% intervals.\n"
    "They are bold where the interval leaves out 0 and there are three seeds or more.\n"
    "With one seed the interval covers images alone.\n"
)
FULL_SIZE = "## At the paper's size"
SEEDS, DEVICE = "0:4", "A100"
OWN = ("k", "e2e")  # settings that an end-to-end method has for itself: others have no such steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    results = parser.parse_args().results
    if not any(read_published(results, dataset) for dataset in paper.TITLES):
        sys.exit(f"{results} holds no published runs; make some with benchmarks/publish.py, or name another folder")
    text = make_page(results)
    (results / "reproduction.md").write_text(text)
    print(text)


def make_page(results: Path) -> str:
    """All tables."""
    return make_comparison(results) + "\n" + make_full_size()


def make_comparison(results: Path) -> str:
    """The tables of each data set that has published runs."""
    parts = [ABOUT]
    for dataset, title in paper.TITLES.items():
        if found := read_published(results, dataset):
            tables = [to_markdown(make_table(dataset, found, score)) for score in TABLES]
            notes = [f"{PAPER}: {describe_network(EXPERIMENTS[dataset].net.model_dump())}.", *list_notes(found)]
            parts += [f"## {title}\n", *tables, "\n".join(f"- {note}" for note in notes) + "\n"]
    return "\n".join(parts)


def read_published(results: Path, dataset: str) -> dict[str, ExperimentRuns]:
    """What is published of a data set, by network."""
    found = {network: archive.read_experiments(results / f"{dataset}-{suffix}") for suffix, network in NETWORKS.items()}
    return {network: experiments[0] for network, experiments in found.items() if experiments}


def make_table(dataset: str, found: dict[str, ExperimentRuns], score: str) -> ReportTable:
    """A row for each method of the paper, and for each other one that was run; the score, and its difference."""
    table = paper.read_score_tables()[dataset, "test"]
    minus = f"minus {find_label(REFERENCE)}"
    columns = [Column("Model", numeric=False), Column(paper.SCORES[score], PAPER), Column(minus, PAPER)]
    for network in found:
        columns += [Column(f"{paper.SCORES[score]} (seeds)", network), Column(f"{minus} [95%]", network)]
    methods = [m for m in METHODS if m not in paper.ORDER and any(find_row(e, m) for e in found.values())]
    rows = []
    for method in (*paper.ORDER, *methods):
        cells = [Cell(find_label(method)), *make_paper_cells(dataset, method, score)]
        for experiment in found.values():
            cells += make_own_cells(experiment, find_row(experiment, method), score)
        rows.append(cells)
    return ReportTable(
        name=f"{dataset}-{score}",
        title=f"{paper.TITLES[dataset]}, {TABLES[score]}",
        caption=f"The paper's numbers are those of {table.source}.",
        columns=columns,
        rows=rows,
    )


def make_paper_cells(dataset: str, method: str, score: str) -> list[Cell]:
    """What the paper prints, and its difference to the reference; dashes for a method that it has not."""
    printed = paper.read_score_tables()[dataset, "test"].rows.get(method)
    difference = paper.find_difference(dataset, score, method, REFERENCE)
    if printed is None or difference is None:
        return [Cell(), Cell()]
    number = Cell(f"{printed[score].text} ± {printed[score].deviation}".replace("-", "−"))
    return [number, Cell() if method == REFERENCE else Cell(format_number(difference, sign=True))]


def make_own_cells(experiment: ExperimentRuns, row: Row | None, score: str) -> list[Cell]:
    """The mean over seeds with their number, and the paired difference; dashes where nothing was run."""
    means = row.means("test", score) if row else []
    if row is None or not means:
        return [Cell(), Cell()]
    mean, interval = make_mean_cell(means), measure(experiment, row, score)
    cell = make_difference_cell(interval)
    fewer = f" ({interval.seeds} seeds)" if interval is not None and interval.seeds != len(means) else ""
    clear = reach_verdict("greater", interval, 0.0) != NOT_SHOWN
    return [replace(mean, text=f"{mean.text} ({len(means)})"), replace(cell, text=cell.text + fewer, bold=clear)]


def measure(experiment: ExperimentRuns, row: Row, score: str) -> Interval | None:
    """The row's score minus the reference's, over the seeds and images of both; None where there is no such seed."""
    reference = experiment.find_comparable(REFERENCE)
    if reference is None or reference is row:
        return None
    pairs = pair_by_seed(row.select_scored("test"), reference.select_scored("test"))
    return compare_pairs(pairs, score, "test").interval if pairs else None


def find_row(experiment: ExperimentRuns, method: str) -> Row | None:
    """The method's row that compares; an end-to-end method may have settings that are its own."""
    mine = [row for row in experiment.rows if row.method == method and has_own(row)]
    return experiment.find_comparable(method) or max(mine, key=lambda row: len(row.runs), default=None)


def has_own(row: Row) -> bool:
    """Whether a row differs from the others in nothing but what only its method has.

    >>> has_own(Row("bsvi-e2e", "e2e.steps = 3, k = 3", [])), has_own(Row("bsvi-e2e", "k = 3, steps = 400", []))
    (True, False)
    """
    names = {part.split(" = ")[0].split(".")[0] for part in row.variant.split(", ")}
    return row.method in METHODS and METHODS[row.method].end_to_end and names <= set(OWN)


def list_notes(found: dict[str, ExperimentRuns]) -> list[str]:
    """What each column was made of, and which runs it leaves out."""
    notes = []
    for network, experiment in found.items():
        shown, left_out = [], []
        for row in experiment.rows:
            (shown if row is find_row(experiment, row.method) else left_out).append(row)
        notes.append(f"{network} ({experiment.name}): {describe_runs([run for row in shown for run in row.runs])}.")
        notes += [f"{find_label(row.method)} of {experiment.name} has {row.variant}." for row in shown if row.variant]
        notes += [f"{experiment.name}: {note}" for note in describe_left_out(replace(experiment, rows=left_out))]
    return notes


def describe_runs(runs: list[ReportedRun]) -> str:
    """Network, updates, images and estimator of some runs, in words."""
    scores = [run.scores["test"].summary for run in runs if "test" in run.scores]
    networks = " or ".join(sorted({describe_network(run.part("config").get("net", {})) for run in runs}))
    images = list_values([run.part("data")["train"] for run in runs])
    k, tested = (list_values([score[name] for score in scores]) for name in ("k", "examples"))
    updates = list_values([run.steps for run in runs])
    return f"{networks}, {updates} updates, {images} training images, BSVI-{k} of {tested} test images"


def describe_network(net: dict[str, Any]) -> str:
    """The decoder in words.

    >>> describe_network({"kind": "pixelcnn", "kernels": (5, 3, 3), "channels": 8, "latent": 32})
    'gated PixelCNN, 3 layers of 8 channels, 32 latent dimensions'
    """
    if net.get("kind") == "pixelcnn":
        size = f"gated PixelCNN, {len(net['kernels'])} layers of {net['channels']} channels"
    else:
        size = f"fully connected, width {net.get('hidden', '?')}"
    return f"{size}, {net.get('latent', '?')} latent dimensions"


def list_values(values: list[int]) -> str:
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def make_full_size() -> str:
    """What ``bsvi plan`` says of the paper's own experiments."""
    rows, hours, device = [], 0.0, ""
    for dataset in paper.TITLES:
        words = [dataset, "--methods", "all", "--seeds", SEEDS, "--device", DEVICE]
        arguments, rest = plan.make_parser().parse_known_args(words)
        made = plan.build_plan(arguments, plan.parse_learners(arguments, rest))
        together = made.train_hours + made.evaluate_hours
        counts = [f"{len(made.rows) * made.seeds}", f"{made.steps:,}"]
        totals = [plan.format_total(value) for value in (made.train_hours, made.evaluate_hours, together)]
        rows.append([Cell(text) for text in (dataset, *counts, *totals)])
        hours, device = hours + together, made.device
    titles = ("Experiment", "runs", "updates", "training", "evaluation", "together")
    table = ReportTable(
        name="full-size",
        title=f"One {DEVICE} for the paper's tables",
        caption=f"By `bsvi plan EXPERIMENT --methods all --seeds {SEEDS} --device {DEVICE}`, an upper figure. {device}.",
        columns=[Column(title, numeric=title != "Experiment") for title in titles],
        rows=rows,
        notes=[f"All of it: {plan.format_total(hours)}. The rates are assumed, and were never measured on a GPU."],
    )
    return f"{FULL_SIZE}\n\n{to_markdown(table)}"


if __name__ == "__main__":
    main()
