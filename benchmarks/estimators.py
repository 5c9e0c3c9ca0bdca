"""Which estimator of ln p(x) is tightest for its cost? BSVI-500, IWAE-1000 and refine-anneal on trained runs.

    ./run python benchmarks/estimators.py RUN... --data-dir DIR [--images 16] [--passes 1000 10000 50000] [--out DIR]

Each RUN is a folder EXPERIMENT/METHOD-seedN of ``bsvi train``. The reference is refine-anneal with the most passes. A second one,
of about as many passes with other noise, a shorter climb, half the chains and longer trajectories, says how far the reference may
be trusted. Differences are paired by image. Time is CPU time of one thread. A finished run is kept in OUT/estimators.json with
the command that trained it, and not done again; the table of all is printed.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bsvi
from bsvi.data import evaluation_batches
from bsvi.evaluation.budget import Budget, plan_budget
from bsvi.evaluation.per_example import Score
from bsvi.experiments.trained import load_trained
from bsvi.system.files import write_atomically

BSVI, IWAE = 500, 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=16, help="the first N test images")
    parser.add_argument(
        "--passes", type=int, nargs="+", default=[1000, 10_000, 50_000], help="the largest is the reference"
    )
    parser.add_argument("--out", type=Path, default=Path("results/estimators"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "estimators.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for run in arguments.runs:
        name = f"{run.resolve().parent.name}/{run.name}"
        if name not in known:
            known[name] = compare(run, arguments.data_dir, arguments.images, sorted(arguments.passes))
            write_atomically(file, (json.dumps(known, indent=1) + "\n").encode())
            print(f"{name} done", flush=True)
    print(make_table(known))


def compare(run: Path, data_dir: Path | None, images: int, passes: list[int]) -> dict[str, Any]:
    """The estimates of one run, as differences from its reference, with the CPU seconds of an image."""
    trained = load_trained(run, torch.device("cpu"))
    split = trained.data(data_dir).test.take(images)
    batches = list(evaluation_batches(split, batch_size=images, device=trained.device))
    about = trained.experiment
    command = (
        f"bsvi train {run.resolve().parent.name} --method {about.method} --steps {about.steps} --seed {about.seed}"
    )
    model, svi = trained.inference, bsvi.SVI(**trained.experiment.svi.model_dump())
    scores: dict[str, Score] = {}
    seconds: dict[str, float] = {}

    def measure(name: str, estimate: Callable[[], Score]) -> None:
        begin = time.process_time()
        scores[name] = estimate()
        seconds[name] = (time.process_time() - begin) / images

    measure(
        f"BSVI-{BSVI}", lambda: bsvi.evaluate(model, batches, k=BSVI, svi=svi, iwae=(), elbo_draws=1).log_likelihood
    )
    measure(f"IWAE-{IWAE}", lambda: bsvi.evaluate(model, batches, k=1, svi=svi, iwae=IWAE, elbo_draws=1).iwae[IWAE])
    for count in passes:
        measure(f"refine-anneal-{count}", partial(anneal, model, batches, count))
    last = passes[-1]
    other = bsvi.refine_anneal(model, batches, budget=change_settings(last, model, batches), seed=1).log_likelihood
    reference = scores[f"refine-anneal-{last}"]
    return {
        "command": command,
        "images": images,
        "reference": last,
        "log_likelihood": reference.summary(),
        "other_reference": (other - reference).summary(),
        "minus_reference": {name: (score - reference).summary() for name, score in scores.items()},
        "seconds": seconds,
    }


def anneal(model: Any, batches: Any, passes: int) -> Score:
    return bsvi.refine_anneal(model, batches, passes=passes).log_likelihood


def change_settings(passes: int, model: Any, batches: Any) -> Budget:
    """About as many passes, divided otherwise: half the climb, the chains and the temperatures, trajectories as much longer."""
    with torch.no_grad():
        size = model.posterior(model.encode(batches[0].x)).event_shape.numel()
    plan = plan_budget(passes, size)
    halves = {name: max(1, getattr(plan, name) // 2) for name in ("climb", "chains", "temperatures")}
    return replace(plan, **halves, leapfrog=3 * plan.leapfrog)


def make_table(known: dict[str, Any]) -> str:
    """All runs as Markdown, and the mean share of BSVI's distance that is left."""
    if not known:
        return "no run yet\n"
    names = list(dict.fromkeys(name for entry in known.values() for name in entry["minus_reference"]))
    bsvi_name, small = f"BSVI-{BSVI}", next(name for name in names if name.startswith("refine-anneal"))
    lines = [
        "| Model | images | reference | "
        + " | ".join(f"{name} minus it" for name in names)
        + " | other settings minus it "
        f"| time, {small} / {bsvi_name} |",
        "| --- |" + " --- |" * (len(names) + 4),
    ]
    for name, entry in known.items():
        apart = [show(entry["minus_reference"].get(each)) for each in names]
        ratio = entry["seconds"][small] / entry["seconds"][bsvi_name]
        first = [name, str(entry["images"]), f"{entry['log_likelihood']['mean']:.2f}"]
        lines.append("| " + " | ".join([*first, *apart, show(entry["other_reference"]), f"{ratio:.2f}"]) + " |")
    left = [entry["minus_reference"] for entry in known.values()]
    total = {each: sum(-entry[each]["mean"] for entry in left) for each in (bsvi_name, small)}
    far = [
        entry for entry in left if -entry[bsvi_name]["mean"] > 2 * entry[bsvi_name]["stderr"]
    ]  # else there is no share
    shares = [entry[small]["mean"] / entry[bsvi_name]["mean"] for entry in far]
    lines += [
        "",
        f"Of {bsvi_name}'s distance to the reference {small} leaves {total[small] / total[bsvi_name]:.0%} over all models "
        f"together, and {sum(shares) / max(1, len(shares)):.0%} on the average of the {len(shares)} models "
        "where it is beyond two errors.",
    ]
    return "\n".join(lines) + "\n"


def show(part: dict[str, float] | None) -> str:
    return "" if part is None else f"{part['mean']:.2f} ± {part['stderr']:.2f}"


if __name__ == "__main__":
    main()
