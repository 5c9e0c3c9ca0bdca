"""What a sweep would do: its runs in order, and how long they take."""

import argparse
import json
import time
from functools import partial

from bsvi.commands.train_flags import experiment_of
from bsvi.commands.train_flags import parse as parse_train
from bsvi.sweep import Job, is_scored

METHODS = ("vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi")


def make_plan(arguments: argparse.Namespace, rest: list[str]) -> list[Job]:
    """All methods of the first seed, then of the next: the order that gives a first complete table soonest."""
    names = METHODS if arguments.methods == "all" else tuple(dict.fromkeys(arguments.methods.split(",")))
    if unknown := [name for name in names if name not in METHODS]:
        raise ValueError(f"unknown method {unknown[0]!r}; the methods: {', '.join(METHODS)}")
    jobs = []
    for seed in seeds(arguments.seeds):
        for name in names:
            folder = arguments.runs / arguments.experiment / f"{name}-seed{seed}"
            words = [arguments.experiment, "--method", name, "--seed", str(seed), "--out", str(folder), *rest]
            words += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
            command = parse_train(words)  # a wrong flag is told now, not in eight log files
            evaluate = ["evaluate", str(folder), "--k", str(arguments.k), "--quiet"]
            evaluate += ["--device", command.device, "--compile", command.compile]
            evaluate += ["--examples", str(arguments.examples)] if arguments.examples else []
            evaluate += ["--iwae", *map(str, arguments.iwae)] if arguments.iwae is not None else []
            evaluate += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
            scored = partial(is_scored, folder, arguments.k, arguments.examples, arguments.iwae)
            jobs.append(Job(experiment_of(command), folder, ["train", *words, "--quiet"], evaluate, scored))
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
    return list(dict.fromkeys(found))


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
