"""Which reading of the paper's SVI step trains best? docs/theory.md as an experiment, on real images.

    ./run python benchmarks/svi_step.py --data-dir DIR        about 25 minutes on one core; run it again to go on

Every reading trains omniglot-mlp by bsvi-sir (and at k = 9 with a second seed, and by svi) for the same number of updates. All
are judged on the same validation images by the same two judges, BSVI-500 with two SVI steps, so that no reading judges
itself; the tighter judge counts. Differences from the first reading are paired by image. No test image is looked at.
"""

import argparse
import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bsvi
from bsvi.data import evaluation_batches
from bsvi.evaluation.scores import Scores
from bsvi.experiments.trained import load_trained

READINGS = {  # lr, norm at which the mean's and the log-variance's gradient are clipped, per example or batch
    "per example": {"svi.lr": "0.02", "svi.max-grad-norm": str(50**0.5), "svi.clip": "example"},
    "lr 0.1, clip 1": {"svi.lr": "0.1", "svi.max-grad-norm": "1.0", "svi.clip": "example"},
    "literal batch": {"svi.lr": "1.0", "svi.max-grad-norm": "1.0", "svi.clip": "batch"},
}
KL = {"Monte Carlo": "--svi.no-closed-form-kl", "closed form": "--svi.closed-form-kl"}
JUDGES = {"per example": bsvi.SVI(), "lr 0.1, clip 1": bsvi.SVI(lr=0.1, max_grad_norm=1.0)}
IMAGES, STEPS = 300, 1000
CASES = [
    *((r, g, k, "bsvi-sir", 0) for k, r, g in product((9, 2, 5, 20), READINGS, KL)),
    *((r, g, 9, "bsvi-sir", 1) for r, g in product(READINGS, KL)),
    *((r, g, 9, "svi", 0) for r, g in product(READINGS, KL)),
]


def folder_of(runs: Path, case: tuple[str, str, int, str, int]) -> Path:
    reading, gradient, k, method, seed = case
    return runs / f"{method}-{reading}-{gradient}-k{k}-seed{seed}".replace(" ", "-").replace(",", "")


def trained(runs: Path, case: tuple[str, str, int, str, int], data_dir: Path | None) -> Path:
    """The case's run folder, trained by ``bsvi train``; a finished one is not trained again."""
    reading, gradient, k, method, seed = case
    words = ["omniglot-mlp", "--method", method, "--seed", str(seed), "--svi.steps", str(k), KL[gradient]]
    words += [word for name, value in READINGS[reading].items() for word in (f"--{name}", value)]
    words += ["--steps", str(STEPS), "--anneal.steps", str(STEPS // 3), "--valid-every", "500", "--threads", "1"]
    words += ["--optim.lr", "3e-3"]  # a third of the updates that 1e-3 needs for the same bound
    words += ["--quiet", "--logger", "none", "--out", str(folder_of(runs, case))]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    subprocess.run([sys.executable, "-m", "bsvi", "train", *words], check=True, stdout=subprocess.DEVNULL)
    return folder_of(runs, case)


def judged(folder: Path, data_dir: Path | None) -> dict[str, Scores]:
    """BSVI-500 of the run's model on the validation images, by each judge."""
    found = load_trained(folder, torch.device("cpu"))
    images = found.data(data_dir).valid.take(IMAGES)
    scores = {}
    for name, svi in JUDGES.items():
        place = folder / name.replace(" ", "-").replace(",", "")
        if not (place / "scores.json").exists():
            place.mkdir(exist_ok=True)
            bsvi.evaluate(found.model, evaluation_batches(images, batch_size=250), k=500, svi=svi, iwae=()).save(
                place, "valid"
            )
        scores[name] = Scores.load(place, "valid")
    return scores


def measured(folder: Path, judges: dict[str, Scores]) -> dict[str, Any]:
    """What a case's row says: the tighter judge, and the last line of the training curves."""
    best = max(judges, key=lambda name: judges[name].log_likelihood.mean)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-3:]
    ends = {name: float(np.mean([line[name] for line in last])) for name in ("svi_0", "svi_k", "bsvi_k", "moved")}
    result = json.loads((folder / "result.json").read_text())
    score = judges[best].log_likelihood
    return {
        "log_likelihood": score.mean,
        "judge": best,
        "judges": {name: scores.log_likelihood.mean for name, scores in judges.items()},
        "kl": judges[best].kl.mean,
        "svi_gain": ends["svi_k"] - ends["svi_0"],
        "buffer_gain": ends["bsvi_k"] - ends["svi_k"],
        "moved": ends["moved"],
        "seconds": result["seconds"],
        "per_example": score.per_example,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/svi_step"))
    parser.add_argument("--out", type=Path, default=Path("results/svi_step"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for at, case in enumerate(CASES):
        folder = trained(arguments.runs, case, arguments.data_dir)
        names = ("reading", "gradient", "k", "method", "seed")
        rows.append(dict(zip(names, case, strict=True)) | measured(folder, judged(folder, arguments.data_dir)))
        same = ("k", "method", "seed")
        first = next(row for row in rows if all(row[name] == rows[-1][name] for name in same))
        difference = rows[-1]["per_example"] - first["per_example"]
        error = difference.std(ddof=1) / len(difference) ** 0.5
        rows[-1] |= {"minus_first": float(difference.mean()), "minus_first_stderr": float(error)}
        print(f"{at + 1}/{len(CASES)} {line(rows[-1])}", flush=True)
    write(arguments.out, rows)


def line(row: dict[str, Any]) -> str:
    return (
        f"| {row['method']} | {row['k']} | {row['seed']} | {row['reading']} | {row['gradient']} | {row['log_likelihood']:.2f} | "
        f"{row['minus_first']:+.2f} ± {row['minus_first_stderr']:.2f} | {row['kl']:.1f} | {row['svi_gain']:+.2f} | "
        f"{row['buffer_gain']:+.2f} | {row['moved']:.2f} |"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Each reading minus the first, over all settings of bsvi-sir: mean and standard error over settings (k, seed)."""
    lines = ["| bsvi-sir, all k and seeds | gradient | minus the first reading | settings |", "|---|---|---|---|"]
    for reading, gradient in product(READINGS, KL):
        chosen = [
            row for row in rows if (row["method"], row["reading"], row["gradient"]) == ("bsvi-sir", reading, gradient)
        ]
        values = np.array([row["minus_first"] for row in chosen])
        error = values.std(ddof=1) / len(values) ** 0.5
        lines.append(f"| {reading} | {gradient} | {values.mean():+.2f} ± {error:.2f} | {len(values)} |")
    return "\n".join(lines) + "\n"


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """The table as Markdown and as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    kept = [{name: value for name, value in row.items() if name != "per_example"} for row in rows]
    (out / "svi_step.json").write_text(json.dumps(kept, indent=1) + "\n")
    head = "method | k | seed | reading | gradient | log-likelihood | minus the first reading | KL* | SVI-k - SVI-0 | "
    head = f"| {head}BSVI-k - SVI-k | lambda moved |\n|{'---|' * 11}\n"
    (out / "table.md").write_text(head + "".join(line(row) + "\n" for row in rows) + "\n" + summary(rows))
    print(f"{out / 'table.md'}")


if __name__ == "__main__":
    main()
