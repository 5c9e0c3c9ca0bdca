"""Two methods of published runs, paired by image and by seed: the differences of their log-likelihoods.

    ./run python benchmarks/compare.py results/pixelcnn-1000:bsvi-e2e results/pixelcnn-1000:bsvi-sir
    ./run python benchmarks/compare.py results/equal-100s:bsvi-e2e results/equal-100s:vae

Each difference is one of means over the images that both have; its error is that over images. Over seeds there is Student's 95%
interval, where there are two seeds or more. Nothing is said about whether the runs had the same settings: look at about.json.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from bsvi.report import archive

Scores = dict[tuple[str, int], dict[int, float]]  # of an experiment and a seed: by image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", help="results/NAME:METHOD")
    parser.add_argument("other", help="what is subtracted")
    arguments = parser.parse_args()
    print("\n".join(compare(read_scores(arguments.one), read_scores(arguments.other))))


def read_scores(text: str) -> Scores:
    """The log-likelihoods of one method in an archive of runs."""
    folder, _, method = text.rpartition(":")
    found: Scores = {}
    if not (Path(folder) / archive.NAME).exists():
        sys.exit(f"{text}: {folder or 'no folder'} holds no {archive.NAME}; write results/NAME:METHOD")
    with archive.open_archive(Path(folder)) as runs:
        for path in sorted(runs.glob("*/scores-test.npz")):
            config = json.loads(path.with_name("config.json").read_text())
            if config["method"] == method:
                with np.load(path) as arrays:
                    values = dict(zip(arrays["ids"].tolist(), arrays["log_likelihood"].tolist(), strict=True))
                found[config["experiment"], config["seed"]] = values
    if not found:
        sys.exit(f"{text}: no run of {method} with test scores is there")
    return found


def compare(one: Scores, other: Scores) -> list[str]:
    """A line for every experiment that both have."""
    lines = []
    for name in dict.fromkeys(name for name, _ in one):
        seeds = sorted(seed for experiment, seed in one.keys() & other.keys() if experiment == name)
        if seeds:
            lines.append(f"{name}: {describe([subtract(one[name, seed], other[name, seed]) for seed in seeds])}")
    return lines or ["no experiment and seed that both have"]


def subtract(one: dict[int, float], other: dict[int, float]) -> np.ndarray:
    """The differences of the images that both have."""
    return np.array([one[image] - other[image] for image in sorted(one.keys() & other.keys())])


def describe(differences: list[np.ndarray]) -> str:
    """The mean over seeds with its interval, and each seed with the error over images."""
    means = np.array([values.mean() for values in differences])
    each = ", ".join(f"{v.mean():+.2f} ± {v.std(ddof=1) / len(v) ** 0.5:.2f}" for v in differences)
    count = f"{len(means)} seed{'s' * (len(means) > 1)}, {min(map(len, differences))} images"
    if len(means) < 2:
        return f"{each} ({count})"
    half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return f"{means.mean():+.2f} [{means.mean() - half:+.2f}, {means.mean() + half:+.2f}] ({count}: {each})"


if __name__ == "__main__":
    main()
