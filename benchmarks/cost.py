"""What each method costs and what it gives: log-likelihood against decoder calls and against time.

    ./run python benchmarks/cost.py                    time the eight methods' updates, then draw; some minutes
    ./run python benchmarks/cost.py --experiments omniglot-small svhn-small        time these anew
    ./run python benchmarks/cost.py --draw             draw again from what was timed

Times are ratios to the VAE's update (objective, clipping, optimiser), all methods in turn in one process on one thread, by CPU
time, so that other work on the machine does not favour a method. Small PixelCNNs run in C++, as in training; nothing else is
compiled. The time of training is this ratio times the number of updates; log-likelihoods are those of the runs in results/.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bsvi.bench.rounds import Case, run_interleaved
from bsvi.experiments.build import build_model, build_objective
from bsvi.experiments.config import EXPERIMENTS
from bsvi.report import archive
from bsvi.report.cells import make_mean_cell
from bsvi.report.experiments import Row
from bsvi.report.paper import ORDER
from bsvi.report.style import find_look, new_figure, to_bytes, use_style
from bsvi.system import runtime
from bsvi.system.native import build_native
from bsvi.tables.methods import find_label

PLACES = {  # networks, and the shape and likelihood of their images
    "omniglot-mlp": ((1, 28, 28), "bernoulli"),
    "fashion-mnist-mlp": ((1, 28, 28), "logistic"),
    "svhn-mlp": ((1, 32, 32), "logistic"),
    "omniglot-small": ((1, 28, 28), "bernoulli"),
    "fashion-mnist-small": ((1, 28, 28), "logistic"),
    "svhn-small": ((1, 32, 32), "logistic"),
}
METHODS = ORDER


def timed(name: str, rounds: int) -> dict[str, Any]:
    """Decoder calls and the update's time, as a ratio to the VAE's, of each method."""
    shape, likelihood = PLACES[name]
    cases, calls = [], {}
    for method in METHODS:
        e = EXPERIMENTS[name].model_copy(update={"method": method})
        model, objective = build_model(e, shape, likelihood), build_objective(e)
        if getattr(model.decoder, "has_native_form", False):
            build_native(model.decoder, print)
        parameters = [*model.parameters(), *objective.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=e.optim.lr, amsgrad=True)
        x = torch.randint(2, (e.batch_size, *shape)).float()
        calls[method] = objective.decoder_calls

        def update(model: Any = model, objective: Any = objective, optimizer: Any = optimizer, x: Any = x) -> None:
            optimizer.zero_grad()
            objective(model, x).loss.backward()
            torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 5.0)
            optimizer.step()

        cases.append(Case(method, "vae", update, update))  # one update to warm up, one that counts
    done = run_interleaved(cases, rounds, "cpu")
    summary = {case.name: done.summary(case) for case in cases}
    kept = ("seconds", "ratio", "ratio_range", "n")
    rows = {m: {"decoder_calls": calls[m], **{key: summary[m][key] for key in kept}} for m in METHODS}
    pairs = zip(done.seconds["bsvi-sir"], done.seconds["svi"], strict=True)
    rows["bsvi-sir"]["to_svi"] = [round(one / other, 4) for one, other in pairs]  # round by round, for claims.py
    return rows


def rows_of(folder: Path, name: str) -> list[Row]:
    """The published runs of an experiment, one row per method that is timed."""
    found = [experiment for experiment in archive.read_experiments(folder) if experiment.name == name]
    return [row for experiment in found for row in experiment.rows if row.method in METHODS]


def updates(row: Row) -> float:
    return float(np.mean([run.steps for run in row.runs]))


def drawn(results: Path, times: dict[str, Any]) -> None:
    """cost.png: a row for each data set, log-likelihood against calls (left) and time (right); cost.md.

    Hollow points are runs of results/equal-time, which had more updates than those of the table.
    """
    found = {name: rows_of(results / name, name) for name in times}
    known = {name: rows for name, rows in found.items() if any(row.method == "vae" for row in rows)}
    if not known:
        sys.exit(
            f"{results} holds no times (leave --draw out) or no runs of vae to compare with (benchmarks/publish.py)"
        )
    lines = [
        "| networks | method | updates | decoder calls per update | time of an update, ratio to VAE | "
        "training time, ratio to VAE | test log-likelihood (seeds) |",
        "|---|---|---|---|---|---|---|",
    ]
    with use_style():
        figure = new_figure(height=2.6 * len(known))
        panels = np.atleast_2d(figure.subplots(len(known), 2, sharey="row"))
        for pair, (name, rows) in zip(panels, known.items(), strict=True):
            usual = next(updates(row) for row in rows if row.method == "vae")
            longer = rows_of(results / "equal-time", name)
            for row, fill in [*((row, "full") for row in rows), *((row, "none") for row in longer)]:
                cost, style, means = times[name][row.method], find_look(row.method), row.means("test", "log_likelihood")
                training = cost["ratio"] * updates(row) / usual
                spread = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                marker = {"fmt": style.marker, "color": style.colour, "fillstyle": fill, "markersize": 7}
                label = find_label(row.method) if fill == "full" else None
                for axes, at in zip(pair, (cost["decoder_calls"], training), strict=True):
                    if axes is pair[1] or fill == "full":
                        axes.errorbar([at], [np.mean(means)], [spread], label=label, **marker)
                lines.append(
                    f"| {name} | {find_label(row.method)} | {updates(row):,.0f} | {cost['decoder_calls']} | "
                    f"{cost['ratio']:.1f} | {training:.1f} | {make_mean_cell(means).text} ({len(means)}) |"
                )
            pair[0].set_ylabel(f"{name}\nlog-likelihood")
            for axes, title in zip(pair, ("decoder calls per update", "training time / VAE's"), strict=True):
                axes.set_xlabel(title)
        panels[0][0].legend(fontsize=7, ncols=2)
        figure.canvas.draw()
        (results / "cost.png").write_bytes(to_bytes(figure, "png"))
    (results / "cost.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--draw", action="store_true", help="do not time anything")
    parser.add_argument(
        "--experiments", nargs="+", choices=PLACES, default=[*PLACES], metavar="NAME", help=", ".join(PLACES)
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    runtime.start(runtime.Runtime("cpu", threads=1, compile="off"))  # with the allocator of bsvi train
    path = arguments.results / "cost.json"
    times = json.loads(path.read_text()) if path.exists() else {}
    for name in () if arguments.draw else arguments.experiments:
        times[name] = timed(name, arguments.rounds)
        path.write_text(json.dumps(times, indent=1) + "\n")
        print(f"{name}: " + ", ".join(f"{m} {row['ratio']:.2f}" for m, row in times[name].items()), flush=True)
    drawn(arguments.results, times)


if __name__ == "__main__":
    main()
