"""The paper's claims over all published experiments, a column each: results/claims.md; and AIS as a judge: results/judge.md.

./run python benchmarks/claims.py

The last row is from cost.json (benchmarks/cost.py): the median over rounds in which the methods were timed in turn.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from bsvi.report import archive
from bsvi.report.claim_tables import describe_left_out, make_claims_table
from bsvi.report.claims import CLAIMS, MARGIN_OF_TIME, ClaimResult, check_claims, reach_verdict
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.intervals import Interval

TABLES = {
    "Fully connected networks": ("omniglot-mlp", "fashion-mnist-mlp", "svhn-mlp"),
    "Small gated PixelCNN": ("omniglot-small", "fashion-mnist-small", "svhn-small"),
}
ORDER = tuple(name for names in TABLES.values() for name in names)


def page(results: Path) -> str:
    """The tables of all published experiments, a heading above each: side by side they would be too wide."""
    known = {title: [name for name in names if is_published(results, name)] for title, names in TABLES.items()}
    return "\n".join(f"## {title}\n\n{table(results, names)}" for title, names in known.items() if names)


def is_published(results: Path, name: str) -> bool:
    return (results / name / archive.NAME).exists()


def table(results: Path, known: Sequence[str]) -> str:
    """A row for each claim, a column for each experiment: difference, 95% interval, verdict."""
    found: list[tuple[ExperimentRuns, list[ClaimResult]]] = []
    for name in known:
        (experiment,) = archive.read_experiments(results / name)
        found.append((experiment, check_claims(experiment)))
    seeds = [len({run.seed for run in experiment.runs}) for experiment, _ in found]
    head = [f"{name} ({count} seeds)" for name, count in zip(known, seeds, strict=True)]
    rows = [["Claim", *head], ["---"] * (len(head) + 1)]
    columns = [make_claims_table(*each).rows for each in found]
    for number, claim in enumerate(CLAIMS):
        cells = []
        for (_, checked), column, all_seeds in zip(found, columns, seeds, strict=True):
            interval = checked[number].interval
            fewer = f" ({interval.seeds} seeds)" if interval is not None and interval.seeds != all_seeds else ""
            cells.append(f"{column[number][1].text}: **{column[number][2].text}**{fewer}")
        rows.append([claim.text.replace("*", "\\*"), *cells])
    times = json.loads((results / "cost.json").read_text()) if (results / "cost.json").exists() else {}
    ratios = [times.get(name, {}).get("bsvi-sir", {}).get("to_svi", []) for name in known]
    rows.append(["The same, by the CPU time of updates in turn", *map(same_time, ratios)])
    notes = [f"\n{experiment.name}: {note}\n" for experiment, _ in found for note in describe_left_out(experiment)]
    return lines(rows) + "".join(notes)


def judge(results: Path) -> str:
    """A row for each model that AIS has judged: its value, and what the other estimates of the same images differ from it."""
    rows: list[list[str]] = []
    for name, found in judged(results / "ais").items():
        if not rows:
            head = ["Model", "images", "AIS", *(f"{name} minus AIS" for name in found["minus_ais"])]
            rows = [head, ["---"] * len(head)]
        differences = [
            f"{each['mean']:.1f} [{each['low']:.1f}, {each['high']:.1f}]" for each in found["minus_ais"].values()
        ]
        values = [f"{found['log_likelihood']['mean']:.1f}", *differences]
        rows.append([name, str(found["images"]), *(value.replace("-", "−") for value in values)])
    return lines(rows)


def judged(published: Path) -> dict[str, dict[str, Any]]:
    """What AIS gave, by the name of the run."""
    if not (published / archive.NAME).exists():
        return {}
    with archive.open_archive(published) as runs:
        texts = {path.parent.name: path.read_text() for path in sorted(runs.glob("*/scores.json"))}
    return {name: next(iter(json.loads(text).values()))["ais"] for name, text in texts.items()}


def lines(rows: list[list[str]]) -> str:
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def of_median(values: Sequence[float], level: float = 0.95) -> Interval:
    """The median with the interval of the sign test, which holds for any distribution; infinite for too few values.

    >>> of_median([float(value) for value in range(1, 16)])
    Interval(mean=8.0, low=4.0, high=12.0, seeds=15, examples=0)
    """
    ordered, n = sorted(values), len(values)
    outside = int(stats.binom.ppf((1 - level) / 2, n, 0.5))  # values that may lie beyond, on each side
    if n == 0 or outside == 0:
        return Interval(ordered[n // 2] if n else math.nan, -math.inf, math.inf, n)
    return Interval(ordered[n // 2], ordered[outside - 1], ordered[n - outside], n)


def same_time(ratios: Sequence[float]) -> str:
    """How long BSVI-SIR's update takes as a share of SVI's, and whether that is the same within the margin."""
    if not ratios:
        return "–: **not shown**"
    found = of_median([math.log(ratio) for ratio in ratios])
    shown = [f"{math.exp(value):.2f}" for value in (found.mean, found.low, found.high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]: **{reach_verdict('close', found, MARGIN_OF_TIME)}**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    results = parser.parse_args().results
    if not any(is_published(results, name) for name in ORDER):
        sys.exit(f"{results} holds no published runs; make some with benchmarks/publish.py, or name another folder")
    for name, text in (("claims.md", page(results)), ("judge.md", judge(results))):
        (results / name).write_text(text)
        print(text)


if __name__ == "__main__":
    main()
