"""One run on two processes against one process: ratios of the time of a whole training step, measured in one run, medians.

    ./run python benchmarks/scaling.py                  some minutes on 2 quiet cores
    ./run python benchmarks/scaling.py --rounds 10

Three take turns, round by round, on the same global batch of 50 through ``bsvi.train``, without a run folder:
two connected processes of one thread each (gloo, DistributedDataParallel, 25 images each), one process of two threads, one
process of one thread. A round of the two lasts until the slower one is done. Images are random: only time is measured.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import bsvi
from bsvi.experiments.build import build_model, build_objective
from bsvi.experiments.config import EXPERIMENTS
from bsvi.training.distributed import Ranks
from bsvi.training.team import Team

BATCH = 50
MLP = EXPERIMENTS["digits"].net.model_copy(update={"kind": "mlp"})
CASES = {  # settings, shape of the images, steps of a round
    "digits, MLP": (EXPERIMENTS["digits"].model_copy(update={"net": MLP}), (1, 8, 8), 20),
    "digits, PixelCNN": (EXPERIMENTS["digits"], (1, 8, 8), 5),
    "omniglot-small, PixelCNN": (EXPERIMENTS["omniglot-small"], (1, 28, 28), 2),
}
TWO, THREADS, ONE = "2 processes, 1 thread each", "1 process, 2 threads", "1 process, 1 thread"


def work(case: str, rank: int, size: int, threads: int, folder: str, pipe: Connection) -> None:
    """A process that trains a round of steps whenever it is asked, and answers with the seconds."""
    settings, shape, steps = CASES[case]
    torch.set_num_threads(threads)
    team = Team()
    if size > 1:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
        team = Ranks(rank, size, rank, torch.device("cpu"))
    model, objective = build_model(settings, shape, "bernoulli"), build_objective(settings)
    images = torch.rand((BATCH, *shape), generator=torch.Generator().manual_seed(0)).round()
    mine = images[rank * BATCH // size : (rank + 1) * BATCH // size]

    def stream(start: int) -> Iterator[Tensor]:
        pipe.send(0.0)
        while True:
            pipe.recv()
            begin = time.perf_counter()
            for _ in range(steps):
                yield mine
            pipe.send(time.perf_counter() - begin)  # the loop asks for the next batch when all else is done

    limits = bsvi.Training(steps=10**9, log_every=10**9)
    bsvi.train(model, objective, stream, settings=limits, team=team)


def measure(case: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step of the three, and ratios of rounds that followed each other."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        teams: dict[str, list[Connection]] = {}
        processes = []
        for name, size, threads in ((TWO, 2, 1), (THREADS, 1, 2), (ONE, 1, 1)):
            teams[name] = []
            for rank in range(size):
                here, there = context.Pipe()
                processes.append(context.Process(target=work, args=(case, rank, size, threads, folder, there)))
                processes[-1].start()
                teams[name].append(here)
        for pipes in teams.values():
            for pipe in pipes:
                pipe.recv()  # they are ready
        spent: dict[str, list[float]] = {name: [] for name in teams}
        for _ in range(rounds + 2):
            for name, pipes in teams.items():
                for pipe in pipes:
                    pipe.send("go")
                spent[name].append(max(pipe.recv() for pipe in pipes))
        for process in processes:
            process.kill()
            process.join()
    spent = {name: seconds[2:] for name, seconds in spent.items()}  # two to warm up
    steps = CASES[case][2]
    row: dict[str, Any] = {name: 1000 * statistics.median(seconds) / steps for name, seconds in spent.items()}
    for name in (THREADS, ONE):
        ratios = sorted(a / b for a, b in zip(spent[TWO], spent[name], strict=True))
        row[f"ratio to {name}"] = {
            "median": statistics.median(spent[TWO]) / statistics.median(spent[name]),
            "low": ratios[len(ratios) // 4],
            "high": ratios[3 * len(ratios) // 4],
            "n": len(ratios),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"bsvi-sir, k = 9, global batch {BATCH}, {arguments.rounds} rounds; load of the machine at the start {load:.1f}"
    )
    report: dict[str, Any] = {"load": load, "cases": {}}
    for case in CASES:
        row = report["cases"][case] = measure(case, arguments.rounds)
        print(f"  {case}: " + ", ".join(f"{name} {row[name]:.1f} ms a step" for name in (TWO, THREADS, ONE)))
        for name in (THREADS, ONE):
            ratio = row[f"ratio to {name}"]
            print(f"    2 processes to {name}: {ratio['median']:.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
