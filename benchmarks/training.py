"""What ``bsvi.train`` costs on top of the bare loop, and what saving costs: ratios measured in one run, medians.

    ./run python benchmarks/training.py                  some minutes on 2 quiet cores
    ./run python benchmarks/training.py --rounds 10

1. a whole step through ``bsvi.train`` with a run folder (checks for NaN, averages, a line of metrics each round, printing)
   against objective, clipping and optimiser alone: the same batches, the two taking turns in one process, one thread;
2. the time of saving a checkpoint to the disk, for these networks and for those of the paper's size, as a share of the
   120 seconds between two saves.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import bsvi
from bsvi.experiments.build import build_model, build_objective
from bsvi.experiments.config import EXPERIMENTS, Experiment
from bsvi.runs.folder import Run
from bsvi.training.state import Best, TrainingState
from bsvi.training.watch import Screen

MLP = EXPERIMENTS["digits"].net.model_copy(update={"kind": "mlp"})
CASES = {  # settings, shape of the images, steps of a round
    "digits, MLP": (EXPERIMENTS["digits"].model_copy(update={"net": MLP}), (1, 8, 8), 20),
    "digits, PixelCNN": (EXPERIMENTS["digits"], (1, 8, 8), 4),
    "omniglot-small, PixelCNN": (EXPERIMENTS["omniglot-small"], (1, 28, 28), 1),
}
BATCH = 50


def make(settings: Experiment, shape: tuple[int, int, int]) -> tuple[bsvi.VAE, bsvi.Objective, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    data = [torch.rand((BATCH, *shape), generator=generator).round() for _ in range(4)]
    return build_model(settings, shape, "bernoulli"), build_objective(settings), data


def bare_loop(settings: Experiment, shape: tuple[int, int, int], steps: int) -> Callable[[], None]:
    """A function that takes ``steps`` steps with objective, backward, clipping and optimiser, and nothing else."""
    model, objective, data = make(settings, shape)
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=1e-3, amsgrad=True)

    def round_() -> None:
        for step in range(steps):
            estimate = objective(model, data[step % len(data)], 1.0)
            optimizer.zero_grad(set_to_none=True)
            estimate.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()

    return round_


def clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def measure(name: str, rounds: int, folder: Path) -> dict[str, dict[str, float]]:
    """Ratios of a round through ``bsvi.train`` to a bare one, by time of computing and by the clock."""
    settings, shape, steps = CASES[name]
    model, objective, data = make(settings, shape)
    bare = bare_loop(settings, shape, steps)
    spent: dict[str, list[tuple[float, float]]] = {"train": [], "bare": []}

    def difference(since: tuple[float, float]) -> tuple[float, float]:
        now = clocks()
        return now[0] - since[0], now[1] - since[1]

    def stream(start: int) -> Iterator[Tensor]:
        """The batches; between two rounds of the loop that reads them, the bare loop has its turn."""
        while True:
            since = clocks()
            for step in range(steps):
                yield data[step % len(data)]
            spent["train"].append(difference(since))  # the loop asks for the next batch when all else is done
            since = clocks()
            bare()
            spent["bare"].append(difference(since))

    # a step more than the rounds have, as the end of a round is seen when the next begins
    limits = bsvi.Training(steps=steps * (rounds + 2) + 1, log_every=steps, save_every=1e9)
    with Run(folder) as run, contextlib.redirect_stdout(io.StringIO()), Screen(name, limits.steps) as screen:
        bsvi.train(model, objective, stream, settings=limits, run=run, watcher=screen)
    report = {}
    for index, clock in enumerate(("computing", "clock")):
        train, by_hand = ([each[index] for each in spent[which][2:]] for which in ("train", "bare"))  # two to warm up
        ratios = sorted(a / b for a, b in zip(train, by_hand, strict=True))
        n = len(ratios)
        report[clock] = {
            "median": statistics.median(train) / statistics.median(by_hand),
            "low": ratios[n // 4],
            "high": ratios[3 * n // 4],
            "n": n,
            "milliseconds": 1000 * statistics.median(by_hand) / steps,
        }
    return report


def saving(settings: Experiment, shape: tuple[int, int, int], folder: Path, times: int = 9) -> dict[str, float]:
    """Seconds of capturing and saving a whole state with its best weights, fsync and all."""
    model, objective, _ = make(settings, shape)
    state = TrainingState(model, objective)
    for parameter in model.parameters():  # moments without a step, which would take long at the paper's size
        parameter.grad = torch.randn_like(parameter)
    state.optimizer.step()
    state.best = Best.of(model, objective)
    seconds = []
    with Run(folder) as run:
        for step in range(times):
            start = time.perf_counter()
            run.log({"step": step})
            if not run.save(step, *state.capture()):
                raise SystemExit(f"saving failed: {run.warnings}")
            seconds.append(time.perf_counter() - start)
        size = run.checkpoints()[0].stat().st_size
    middle = statistics.median(seconds)
    share = middle / bsvi.Training().save_every
    return {"seconds": middle, "slowest": max(seconds), "n": times, "megabytes": size / 1e6, "share": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, dict] = {"step": {}, "saving": {}}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print("a whole step through bsvi.train against the bare loop; bsvi-sir, batch 50, one thread")
        for name in CASES:
            rows = report["step"][name] = measure(name, arguments.rounds, Path(folder) / name)
            for clock, row in rows.items():
                print(
                    f"  {name:26} by {clock:9} {row['median']:.3f}  ({row['low']:.3f} to {row['high']:.3f}, n = {row['n']} "
                    f"rounds; {row['milliseconds']:.1f} ms a step)"
                )
        print("saving a checkpoint, as a share of the 120 s between two")
        sizes = {name: CASES[name][:2] for name in CASES} | {
            "omniglot, the paper's size": (EXPERIMENTS["omniglot"], (1, 28, 28))
        }
        for name, (settings, shape) in sizes.items():
            row = report["saving"][name] = saving(settings, shape, Path(folder) / f"saving {name}")
            print(
                f"  {name:26} {row['share']:.3%}  (median {1000 * row['seconds']:.0f} ms, slowest "
                f"{1000 * row['slowest']:.0f} ms, n = {row['n']}; {row['megabytes']:.1f} MB)"
            )
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
