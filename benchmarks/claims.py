"""The paper's claims over all published experiments in one table: results/claims.md.

./run python benchmarks/claims.py
"""

import argparse
import sys
from pathlib import Path

from bsvi.report.claims import CLAIMS, Line, check
from bsvi.report.experiments import Experiment, group
from bsvi.report.runs import read_runs
from bsvi.report.tables import claims_table

ORDER = ("omniglot-mlp", "fashion-mnist-mlp", "svhn-mlp", "omniglot-small")


def table(results: Path) -> str:
    """A row for each claim, a column for each experiment: difference, 95% interval, verdict."""
    known = [name for name in ORDER if (results / name / "runs").is_dir()]
    found: list[tuple[Experiment, list[Line]]] = []
    for name in known:
        (experiment,) = group(read_runs([results / name / "runs"])[0])
        found.append((experiment, check(experiment)))
    seeds = [len({run.seed for run in experiment.runs}) for experiment, _ in found]
    head = [f"{name} ({count} seeds)" for name, count in zip(known, seeds, strict=True)]
    rows = [["Claim", *head], ["---"] * (len(head) + 1)]
    columns = [claims_table(*each).rows for each in found]
    for number, claim in enumerate(CLAIMS):
        cells = [column[number] for column in columns]
        rows.append([claim.text.replace("*", "\\*"), *(f"{cell[1].text}: **{cell[2].text}**" for cell in cells)])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    results = parser.parse_args().results
    if not any((results / name / "runs").is_dir() for name in ORDER):
        sys.exit(f"{results} holds no published runs; make some with benchmarks/publish.py, or name another folder")
    (results / "claims.md").write_text(table(results))
    print((results / "claims.md").read_text(), end="")


if __name__ == "__main__":
    main()
