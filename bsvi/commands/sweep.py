"""``bsvi sweep EXPERIMENT --methods all --seeds 0:4``: train and evaluate all that is not finished yet."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bsvi.commands import train
from bsvi.config import EXPERIMENTS
from bsvi.sweep import Job, run_jobs

METHODS = ("vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="bsvi sweep", description=__doc__, epilog="Further flags go to bsvi train: --steps 2000 --svi.lr 0.1"
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--methods", default="all", help="all, or names with commas: vae,svi,bsvi-sir")
    parser.add_argument("--seeds", default="0", help="0, or 0,3, or 0:4 for 0 1 2 3 (default 0)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    parser.add_argument(
        "--jobs", default="auto", help="processes at once; auto: one per core for small networks, else one"
    )
    parser.add_argument("--k", type=int, default=500, help="of the evaluation (default 500)")
    parser.add_argument("--examples", type=int, help="evaluate the first N test images only")
    parser.add_argument("--iwae", type=int, nargs="*", help="numbers of IWAE draws (default k to 5k)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and an estimate of its time, do nothing")
    arguments, rest = parser.parse_known_args(words)

    plan = make_plan(arguments, rest)
    cores = os.cpu_count() or 1
    small = plan[0].experiment.net.kind == "mlp" or plan[0].experiment.net.channels <= 8
    workers = (cores if small else 1) if arguments.jobs == "auto" else int(arguments.jobs)
    threads = max(1, cores // workers)
    for job in plan:
        job.train += ["--threads", str(threads)]
        job.evaluate += ["--threads", str(threads)]
    todo = [job for job in plan if job.next_words() is not None]
    print(
        f"{len(plan)} runs of {arguments.experiment}: {len(plan) - len(todo)} finished, {len(todo)} to do, {workers} at once"
    )
    if arguments.dry_run:
        return dry_run(plan, workers, threads)
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        run_jobs(plan, workers, Display(plan))
    except (KeyboardInterrupt, Stopped) as error:
        print("interrupted; everything is saved, run the same command again to go on", file=sys.stderr)
        return 143 if isinstance(error, Stopped) else 130
    finally:
        signal.signal(signal.SIGTERM, before)
    failed = [job for job in plan if job.stage == "failed"]
    for job in failed:
        print(f"failed: {job.name}: {job.problem}", file=sys.stderr)
    print(
        f"{len(plan) - len(failed)} of {len(plan)} runs are complete; bsvi report {arguments.runs / arguments.experiment}"
    )
    return 1 if failed else 0


class Stopped(Exception):
    """SIGTERM came."""


def _stop(number: int, frame: object) -> None:
    raise Stopped


def make_plan(arguments: argparse.Namespace, rest: list[str]) -> list[Job]:
    """All methods of the first seed, then of the next: the order that gives a first complete table soonest."""
    names = METHODS if arguments.methods == "all" else tuple(arguments.methods.split(","))
    if unknown := [name for name in names if name not in METHODS]:
        raise ValueError(f"unknown method {unknown[0]!r}; the methods: {', '.join(METHODS)}")
    jobs = []
    for seed in seeds(arguments.seeds):
        for name in names:
            folder = arguments.runs / arguments.experiment / f"{name}-seed{seed}"
            words = [arguments.experiment, "--method", name, "--seed", str(seed), "--out", str(folder), *rest]
            words += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
            command = train.parse(words)  # a wrong flag is told now, not in eight log files
            evaluate = ["evaluate", str(folder), "--k", str(arguments.k), "--quiet"]
            evaluate += ["--examples", str(arguments.examples)] if arguments.examples else []
            evaluate += ["--iwae", *map(str, arguments.iwae)] if arguments.iwae is not None else []
            evaluate += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []

            def scored(folder: Path = folder) -> bool:
                return is_scored(folder, arguments.k, arguments.examples)

            jobs.append(Job(command, folder, ["train", *words, "--quiet"], evaluate, scored))
    return jobs


def seeds(text: str) -> list[int]:
    try:
        if ":" in text:
            first, last = text.split(":")
            found = list(range(int(first or 0), int(last)))
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes 0, or 0,3, or 0:4, got {text!r}") from None
    if not found:
        raise ValueError(f"--seeds {text} names no seed; 0:4 means 0 1 2 3")
    return found


def is_scored(folder: Path, k: int, examples: int | None) -> bool:
    try:
        scores = json.loads((folder / "scores.json").read_text())["test"]
    except (OSError, ValueError, KeyError):
        return False
    return scores.get("k") == k and (examples is None or scores.get("examples", 0) >= examples)


def dry_run(plan: list[Job], workers: int, threads: int) -> int:
    """Print what would be done, and how long it takes judged by finished runs of the experiment, or by a few steps taken now."""
    pace = measured_pace(plan, threads)
    total = 0.0
    for job in plan:
        calls = decoder_calls(job) * (job.experiment.steps - job.step()) if not job.trained else 0
        seconds = calls * pace
        total += seconds
        state = (
            "finished"
            if job.next_words() is None
            else "to evaluate"
            if job.trained
            else f"about {clock(seconds)} to train"
        )
        print(f"  {job.name:22} {state:24} {job.folder}")
    print(f"training takes about {clock(total / workers)} with {workers} at once; evaluation comes on top")
    return 0


def measured_pace(plan: list[Job], threads: int) -> float:
    """Seconds per decoder call on one batch."""
    for job in plan:
        if job.trained:
            result = json.loads((job.folder / "result.json").read_text())
            if result["decoder_calls"]:
                return result["seconds"] / result["decoder_calls"]
    import torch

    from bsvi.experiments import build_model, build_objective

    e = plan[0].experiment.model_copy(update={"method": "bsvi-sir"})
    shape = {"digits": (1, 8, 8), "svhn": (1, 32, 32)}.get(e.data.name, (1, 28, 28))
    model, objective = build_model(e, shape, "bernoulli"), build_objective(e)
    x = torch.rand(e.batch_size, *shape).round()
    torch.set_num_threads(threads)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        objective(model, x).loss.backward()
        seconds.append(time.perf_counter() - start)
    return min(seconds) / objective.decoder_calls


def decoder_calls(job: Job) -> int:
    from bsvi.experiments import build_objective

    return build_objective(job.experiment).decoder_calls


def clock(seconds: float) -> str:
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min" if seconds >= 60 else f"{seconds:.0f} s"


class Display:
    """One display for all runs: a live table on a terminal, a line at each change elsewhere."""

    def __init__(self, plan: list[Job]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (
            TextColumn("{task.description:24}"),
            BarColumn(),
            TextColumn("{task.fields[stage]:10}"),
            TimeRemainingColumn(),
        )
        self.bars = Progress(*columns, console=console, disable=not self.live, refresh_per_second=2)
        self.tasks: dict[str, Any] = {
            job.name: self.bars.add_task(job.name, total=job.experiment.steps, stage=job.stage, start=False)
            for job in plan
        }
        self.stages: dict[str, str] = {}
        self.last = 0.0
        self.bars.start()

    def __call__(self, jobs: list[Job]) -> None:
        if time.monotonic() - self.last < 1.0 and any(job.stage in ("training", "evaluating") for job in jobs):
            return
        self.last = time.monotonic()
        for job in jobs:
            if job.stage != self.stages.get(job.name):
                self.stages[job.name] = job.stage
                if job.stage == "training":
                    self.bars.start_task(self.tasks[job.name])
                if not self.live and job.stage != "waiting":
                    print(f"{job.name}: {job.stage}", flush=True)
            if self.live:
                done = job.experiment.steps if job.trained else job.step()
                self.bars.update(self.tasks[job.name], completed=done, stage=job.stage)
        if all(job.stage in ("done", "failed") for job in jobs):
            self.bars.stop()
