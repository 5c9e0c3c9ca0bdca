"""Which gradient pays, and how many steps? The parts of end-to-end refinement, each trained for the same CPU time.

    ./run python benchmarks/end_to_end.py --data-dir DIR --seconds 60        run it again to go on where it stopped

Every form trains the same networks from the same seed for as many seconds of CPU time, on one thread. All are judged on the
same validation images by BSVI-200 with one SVI step, from where the form's own trained steps end; also after ``UPDATES`` updates
on the way there. Differences from the first form are paired by image. No test image is looked at.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bsvi
from bsvi.beyond.end_to_end import EndToEnd
from bsvi.beyond.updates import Network, Rates
from bsvi.beyond.with_refinement import add_refinement
from bsvi.data import evaluation_batches
from bsvi.experiments.build import BuiltExperiment, build
from bsvi.experiments.config import EXPERIMENTS
from bsvi.training.loop import anneal_beta, inference_parameters
from bsvi.training.state import make_optimizer

IMAGES, JUDGE, UPDATES = 300, 200, 500
Make = Callable[[bsvi.SVI, int], bsvi.Objective]


def end_to_end(
    k: int, theta: Any = None, pi: Any = None, learned: bool = True, per: str = "coordinate", **how: Any
) -> Make:
    """A form of end-to-end BSVI with k steps."""

    def make(svi: bsvi.SVI, width: int) -> bsvi.Objective:
        svi = replace(svi, steps=k)
        rates = Rates(svi, learned, width if per == "coordinate" else 1)
        return bsvi.Objective(EndToEnd(svi, rates, **how), pi, theta)

    return make


def iterative(k: int, pi: Any = None) -> Make:
    return lambda svi, width: bsvi.Objective(EndToEnd(replace(svi, steps=k), Network(width), second_order=False), pi)


def method(name: str, k: int) -> Make:
    return lambda svi, width: bsvi.objective(name, k, svi)


FORMS: dict[str, Make] = {
    "bsvi-sir, k = 9": method("bsvi-sir", 9),
    "vae": method("vae", 9),
    "iwae, 10 draws": method("iwae", 9),
    "all, k = 9": end_to_end(9),
    "all, k = 3": end_to_end(3),
    "theta and rates, k = 9": end_to_end(9, encoder=False),
    "phi and rates, k = 9": end_to_end(9, theta=bsvi.Resampled()),
    "theta and phi, k = 9": end_to_end(9, learned=False),
    "rates, k = 9": end_to_end(9, theta=bsvi.Resampled(), encoder=False),
    "first order, k = 9": end_to_end(9, second_order=False),
    "all, k = 5": end_to_end(5),
    "all, k = 2": end_to_end(2),
    "all, k = 1": end_to_end(1),
    "all, k = 9, last draw": end_to_end(9, pi=bsvi.Last()),
    "theta and rates, k = 3": end_to_end(3, encoder=False),
    "phi and rates, k = 3": end_to_end(3, theta=bsvi.Resampled()),
    "first order, k = 3": end_to_end(3, second_order=False),
    "theta and phi, k = 3": end_to_end(3, learned=False),
    "all, k = 9, one rate per step": end_to_end(9, per="step"),
    "iterative, buffered, k = 9": iterative(9),
    "bsvi-sir, k = 3": method("bsvi-sir", 3),
}


def train(
    built: BuiltExperiment, objective: bsvi.Objective, seconds: float, look: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Train for this CPU time as ``bsvi.train`` does, without run folder; what ``look`` finds on the way and at the end."""
    model, settings, found = built.model, built.training(), {}
    optimizer = make_optimizer(model, objective, settings.lr)
    clipped = [*model.parameters(), *inference_parameters(objective)]
    batches, step, spent = iter(built.batches(0)), 0, 0.0
    while spent < seconds:
        begin = time.process_time()
        estimate = objective(model, next(batches).x, anneal_beta(settings, step))
        optimizer.zero_grad()
        estimate.loss.backward()
        nn.utils.clip_grad_norm_(clipped, settings.max_grad_norm)
        optimizer.step()
        step, spent = step + 1, spent + time.process_time() - begin
        if step == UPDATES:
            found["after_updates"] = {"seconds": spent, **look()}
            del found["after_updates"]["per_example"]
    found["after_seconds"] = {"updates": step, **look()}
    return found


def measure(built: BuiltExperiment, make: Make, seconds: float) -> dict[str, Any]:
    """Train one form and judge it."""
    torch.manual_seed(built.experiment.seed)
    svi = bsvi.SVI(**built.experiment.svi.model_dump())
    objective = make(svi, 2 * built.experiment.net.latent)
    images = built.dataset.valid.take(IMAGES)

    def look() -> dict[str, Any]:
        model = add_refinement(built.model, objective)
        with torch.random.fork_rng():
            scores = bsvi.evaluate(model, evaluation_batches(images, batch_size=IMAGES), k=JUDGE, svi=svi, iwae=())
        rates = getattr(getattr(objective.refinement, "update", None), "log_rates", None)
        learned = {} if rates is None else {"rates": rates.detach().mean(-1).exp().tolist()}
        return {
            "log_likelihood": scores.log_likelihood.mean,
            "amortized_elbo": scores.amortized_elbo.mean,
            "per_example": [round(value, 2) for value in scores.log_likelihood.per_example.tolist()],
            **learned,
        }

    return train(built, objective, seconds, look)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--experiments", nargs="*", default=["omniglot-mlp", "svhn-mlp"])
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time of training, each form")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--out", type=Path, default=Path("results/end_to_end"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    store = arguments.out / f"forms-{arguments.seconds:g}s.jsonl"
    rows = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    done = {(row["experiment"], row["seed"], row["form"]) for row in rows}
    for seed in range(arguments.seeds):
        for form in arguments.forms:
            for name in arguments.experiments:
                if (name, seed, form) in done:
                    continue
                e = EXPERIMENTS[name].model_copy(update={"seed": seed})
                e = e.model_copy(update={"data": e.data.model_copy(update={"extra": False})})
                torch.manual_seed(e.seed)
                built = build(e, torch.device("cpu"), arguments.data_dir, progress=False)
                rows.append(
                    {"experiment": name, "seed": seed, "form": form} | measure(built, FORMS[form], arguments.seconds)
                )
                with store.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(line(rows, rows[-1]), flush=True)
    (arguments.out / f"table-{arguments.seconds:g}s.md").write_text(make_table(rows))


def make_table(rows: list[dict[str, Any]]) -> str:
    """All rows, those of one experiment together, the best first."""
    ordered = sorted(rows, key=lambda row: (row["experiment"], row["seed"], -row["after_seconds"]["log_likelihood"]))
    return HEAD + "".join(line(rows, row) + "\n" for row in ordered)


def line(rows: list[dict[str, Any]], row: dict[str, Any]) -> str:
    """The row as Markdown, with the difference from the first form of the same experiment and seed."""
    end, way = row["after_seconds"], row.get("after_updates")
    first = next(r for r in rows if (r["experiment"], r["seed"]) == (row["experiment"], row["seed"]))["after_seconds"]
    difference = torch.tensor(end["per_example"]) - torch.tensor(first["per_example"])
    error = difference.std() / len(difference) ** 0.5
    rates = " ".join(f"{rate:.2f}" for rate in end.get("rates", []))
    on_the_way = f"{way['log_likelihood']:.2f}" if way else ""
    return (
        f"| {row['experiment']} | {row['seed']} | {row['form']} | {end['log_likelihood']:.2f} | {difference.mean():+.2f} ± "
        f"{error:.2f} | {end['updates']} | {on_the_way} | {end['amortized_elbo']:.2f} | {rates} |"
    )


HEAD = (
    f"| experiment | seed | form | log-likelihood | minus the first | updates | after {UPDATES} updates | ELBO | rates |\n"
    f"|{'---|' * 9}\n"
)

if __name__ == "__main__":
    main()
