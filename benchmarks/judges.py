"""Do the paper's claims hold under a better judge? Each difference of two methods by BSVI-500 and by refine-anneal.

    ./run python benchmarks/judges.py

reads results/two-judges (runs.tar.xz), with results/beyond where it is there, and writes results/judges.md. Both judges score
the same 1,000 test images of the same runs. A difference is one of means over images, for each seed; its 95% interval is
Student's over the seeds that both methods have.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats

from bsvi.report import archive
from bsvi.report.beyond import BEYOND
from bsvi.report.claims import CLAIMS

HERE = Path(__file__).resolve().parent.parent
JUDGES = ("BSVI-500", "refine-anneal-1000")
FOLDERS = ("two-judges", "beyond")
PAIRS = [(claim.method, claim.other) for claim in (*CLAIMS, *BEYOND) if claim.score == "log_likelihood"]
Means = dict[tuple[str, str, int], dict[str, float]]  # of an experiment, a method and a seed: by judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=HERE / "results")
    results = parser.parse_args().results
    text = make_page(read_all(results))
    (results / "judges.md").write_text(text)
    print(text)


def read_all(results: Path) -> Means:
    """What there is of all folders."""
    found: Means = {}
    for folder in FOLDERS:
        if (results / folder / archive.NAME).exists():
            with archive.open_archive(results / folder) as runs:
                found |= read_means(runs)
    return dict(sorted(found.items()))


def read_means(runs: Path) -> Means:
    """Both judges' means of each run; a run without both is left out."""
    found: Means = {}
    for path in sorted(runs.glob("*/scores.json")):
        config, scores = (json.loads(file.read_text()) for file in (path.with_name("config.json"), path))
        entry = scores["test"]
        annealed = entry.get("estimates", {}).get(JUDGES[1])
        if annealed is not None:
            key = config["experiment"], config["method"], config["seed"]
            found[key] = {JUDGES[0]: entry["log_likelihood"]["mean"], JUDGES[1]: annealed["mean"]}
    return found


def make_page(means: Means) -> str:
    """The values of all methods, and the differences of the claims, by each judge."""
    parts = ["# Two judges\n\nMade from the archives by `./run python benchmarks/judges.py`.\n"]
    for experiment in dict.fromkeys(name for name, _, _ in means):
        methods = list(dict.fromkeys(method for name, method, _ in means if name == experiment))
        parts.append(f"## {experiment}\n")
        rows = [["Method", "seeds", *JUDGES, "BSVI-500 is too low by at least"]]
        for method in methods:
            values = {judge: list_seeds(means, experiment, method, judge) for judge in JUDGES}
            seeds = sorted(values[JUDGES[0]])
            lower = [values[JUDGES[1]][seed] - values[JUDGES[0]][seed] for seed in seeds]
            shown = [show_mean([*values[judge].values()]) for judge in JUDGES]
            rows.append([method, str(len(seeds)), *shown, show_mean(lower)])
        parts.append(make_table(rows))
        rows = [["Difference", *JUDGES, "the same verdict"]]
        for one, other in PAIRS:
            if not {one, other} <= set(methods):
                continue
            intervals = [find_difference(means, experiment, one, other, judge) for judge in JUDGES]
            verdicts = [low > 0 or high < 0 for _, low, high in intervals]
            cells = [f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" for mean, low, high in intervals]
            rows.append([f"{one} − {other}", *cells, "yes" if verdicts[0] == verdicts[1] else "no"])
        parts.append(make_table(rows))
    return "\n".join(parts)


def list_seeds(means: Means, experiment: str, method: str, judge: str) -> dict[int, float]:
    return {key[2]: value[judge] for key, value in means.items() if key[:2] == (experiment, method)}


def find_difference(means: Means, experiment: str, one: str, other: str, judge: str) -> tuple[float, float, float]:
    """The mean difference over the seeds that both methods have, and its 95% interval."""
    first, second = (list_seeds(means, experiment, method, judge) for method in (one, other))
    values = np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def show_mean(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


def make_table(rows: list[list[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]) + "\n"


if __name__ == "__main__":
    main()
