"""What a sweep would do: its runs in order, and how long they take."""

import argparse
import contextlib
from functools import partial
from pathlib import Path

from bsvi.commands.about import list_changed_fields
from bsvi.commands.train_flags import parse as parse_train
from bsvi.commands.train_flags import strip_command
from bsvi.commands.train_start import default_folder
from bsvi.experiments.config import EXPERIMENTS, MOST_SEED, Experiment
from bsvi.runs.folder import Run, RunError
from bsvi.sweeps.jobs import Job, is_scored, last_line
from bsvi.system.clock import Stopwatch, format_duration
from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.estimators import ESTIMATORS
from bsvi.tables.methods import choose_methods

ENDLESS = ["--steps", str(10**9)]  # of runs that their seconds end
MOST_SEEDS = 10_000  # of one sweep
SLOW = 1.0  # seconds of an update, beyond which a dry run does not time every method


def make_plan(arguments: argparse.Namespace, rest: list[str], source: Path | None = None) -> list[Job]:
    """All methods of the first seed, then of the next: the order that gives a first complete table soonest.

    Runs begin where those of the same names in ``source`` ended.
    """
    names = choose_methods(arguments.methods, phases=True)
    rest = [*rest, *(["--data-dir", str(arguments.data_dir)] if arguments.data_dir else [])]
    found, jobs = parse_seeds(arguments.seeds), []
    first = [arguments.experiment, "--seed", str(found[0]), *rest]
    endless = "--seconds" in rest and not any(word.split("=", 1)[0] == "--steps" for word in rest)
    learners = {name: [*learner(name), *(ENDLESS if endless and ":" not in name else [])] for name in names}
    commands = {name: parse_train([*first, *learners[name]], "sweep") for name in names}  # told now, not in eight files
    experiment_words = arguments.experiment
    if experiment_words not in EXPERIMENTS:  # the path of someone's own images: runs are filed under a name
        arguments.experiment = next(iter(commands.values())).experiment
        experiment_words = str(Path(experiment_words).absolute()) if arguments.on != "local" else experiment_words
    for seed in found:
        for name, command in commands.items():
            experiment = strip_command(command).model_copy(update={"seed": seed})
            folder = arguments.runs / arguments.experiment / default_folder(experiment).name
            begins = source / arguments.experiment / folder.name if source else None
            place = ["--out", str(begins), "--fork", str(folder)] if begins else ["--out", str(folder)]
            words = [experiment_words, *learners[name], "--seed", str(seed), *place, *rest]
            evaluate = ["evaluate", str(folder), "--k", str(arguments.k), "--quiet"]
            evaluate += ["--device", command.device, "--compile", command.compile]
            evaluate += ["--examples", str(arguments.examples)] if arguments.examples else []
            evaluate += ["--iwae", *map(str, arguments.iwae)] if arguments.iwae is not None else []
            evaluate += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
            if arguments.estimator:
                evaluate += ["--estimator", *arguments.estimator, "--passes", str(arguments.passes)]
            wanted = [ESTIMATORS[name].name(arguments.passes) for name in arguments.estimator]
            scored = partial(is_scored, folder, arguments.k, arguments.examples, arguments.iwae, wanted)
            job = Job(experiment, folder, ["train", *words, "--quiet"], evaluate, scored, source=begins)
            if arguments.pictures and seed == found[0]:
                job.sample = ["sample", str(folder), "--device", command.device]
                job.sample += ["--data-dir", str(arguments.data_dir)] if arguments.data_dir else []
            jobs.append(job)
    check_folders(jobs)
    return jobs


def learner(name: str) -> list[str]:
    """The words of bsvi train for a method, or for phases as 'vae:8000+bsvi-sir:2000'."""
    return ["--phases", name.replace("+", ",")] if ":" in name else ["--method", name]


def check_folders(jobs: list[Job]) -> None:
    """RunError, as of bsvi train, where a run was begun with another configuration: its result is not the one asked for."""
    refused: list[tuple[Job, str]] = []
    for job in jobs:
        run = Run(job.folder)
        if job.trained and not (job.folder / "config.json").exists():
            raise RunError(
                f"{job.folder} holds result.json but no config.json, so whose it is cannot be told; use another --runs"
            )
        with contextlib.suppress(RunError):  # a damaged one fails by itself, without the others
            if changed := list_changed_fields(run, job.experiment):
                refused.append((job, "; ".join(changed)))
    if not refused:
        return
    job, fields = refused[0]
    others = f" (and {len(refused) - 1} more runs)" if len(refused) > 1 else ""
    raise RunError(
        f"{job.folder}{others} was started with another configuration ({fields}); "
        "use the same flags, or another --runs for runs of their own"
    )


def parse_seeds(text: str) -> list[int]:
    """The seeds that are meant.

    >>> parse_seeds("4"), parse_seeds("0:4"), parse_seeds("0,3")
    ([4], [0, 1, 2, 3], [0, 3])
    """
    try:
        if ":" in text:
            first, last = text.split(":")
            span = range(int(first or 0), int(last))
            found = list(span[: MOST_SEEDS + 1])
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes 0, or 0,3, or 0:4, got {text!r}") from None
    if not found:
        raise ValueError(f"--seeds {text} names no seed; 0:4 means 0 1 2 3")
    if len(found) > MOST_SEEDS or not 0 <= min(found) <= max(found) <= MOST_SEED:
        raise ValueError(f"--seeds takes at most {MOST_SEEDS:,} numbers from 0 to {MOST_SEED}, got {text!r:.80}")
    return list(dict.fromkeys(found))


def print_plan(plan: list[Job], workers: int, threads: int) -> int:
    """Print what would be done, and how long it takes judged by finished runs of the method, or by a few updates made now."""
    left = {id(job): {} if job.trained else count_updates(job) for job in plan}
    pace = measure_updates(plan, {method for counts in left.values() for method in counts}, threads)
    total = 0.0
    for job in plan:
        limit = (job.experiment.seconds or float("inf")) - find_spent(job)
        seconds = min(sum(pace[method] * count for method, count in left[id(job)].items()), limit)
        total += seconds
        state = (
            "finished"
            if job.next_words() is None
            else "to evaluate"
            if job.trained
            else f"about {format_duration(seconds)} to train"
        )
        print(f"  {job.name:22} {state:24} {job.folder}")
    print(f"training takes about {format_duration(total / workers)} with {workers} at once; evaluation comes on top")
    return 0


def find_spent(job: Job) -> float:
    """Seconds of updates that are behind the run, or behind the one that it begins from, once that has ended."""
    for folder in (job.folder, job.source):
        spent = last_line(folder).get("spent") if folder else None
        if isinstance(spent, float):
            return spent
    return 0.0


def measure_updates(plan: list[Job], methods: set[str], threads: int) -> dict[str, float]:
    """Seconds of an update by each method: of a finished run, or of updates made now. Slow ones follow from bsvi-sir's."""
    found: dict[str, float] = {}
    for job in plan:
        with contextlib.suppress(RunError, TypeError, ZeroDivisionError):  # a damaged one tells nothing
            if job.trained and not job.experiment.phases:
                result = Run(job.folder).read("result.json", "seconds", "steps") or {}
                found[job.experiment.method] = float(result["seconds"] / result["steps"])
    if methods <= found.keys():
        return found
    import torch

    torch.set_num_threads(threads)
    e = plan[0].experiment
    slow = time_update(e, "bsvi-sir")
    for method in methods - found.keys():
        calls = count_calls(e, method) / count_calls(e, "bsvi-sir")
        found[method] = slow * calls if slow > SLOW else time_update(e, method)
    return found


def time_update(e: Experiment, method: str) -> float:
    """Seconds of an update without its optimiser, with the decoder as ``bsvi train`` takes it but for long compiling."""
    import torch

    from bsvi.experiments.build import build_model, build_objective
    from bsvi.system.native import build_native

    e = e.model_copy(update={"method": method, "phases": None})
    shape = DATA_SETS[e.data.name].shape if e.data.name in DATA_SETS else (1, 28, 28)
    model, objective = build_model(e, shape, "bernoulli"), build_objective(e)
    if getattr(model.decoder, "has_native_form", False):
        build_native(model.decoder, lambda line: None)
    x = torch.rand(e.batch_size, *shape).round()
    seconds = []
    for _ in range(3):
        watch = Stopwatch()
        objective(model, x).loss.backward()
        seconds.append(watch.seconds)
        if watch.seconds > SLOW:
            break
    return min(seconds)


def count_calls(e: Experiment, method: str) -> int:
    """Decoder calls of an update."""
    from bsvi.experiments.build import build_objective

    return build_objective(e.model_copy(update={"method": method, "phases": None})).decoder_calls


def count_updates(job: Job) -> dict[str, int]:
    """The updates that are left, by method."""
    done, left = job.step(), dict[str, int]()
    for e, steps in job.experiment.list_phases():
        left[e.method] = left.get(e.method, 0) + max(0, steps - done)
        done = max(0, done - steps)
    return left
