"""``bsvi sweep EXPERIMENT --methods all --seeds 0:4``: train and evaluate all that is not finished yet."""

import argparse
import math
import re
import signal
import sys
from pathlib import Path
from typing import Any

from bsvi.commands.sweep_display import Display
from bsvi.commands.sweep_plan import dry_run, make_plan
from bsvi.config import EXPERIMENTS
from bsvi.runtime import cores as available_cores
from bsvi.sweep import Job, run_jobs

OWN_OPTIONS = {  # of sbatch, and what to write instead
    "time": "--time-limit",
    "partition": "--partition",
    "cpus-per-task": "--cpus-per-run",
    "gpus-per-node": "--gpus-per-run",
    "array": "--jobs for jobs at once",
    "signal": "nothing: SIGUSR1 comes before the time limit",
    "requeue": "nothing: jobs are requeued",
    "no-requeue": "nothing: jobs are requeued",
    "output": "nothing: logs are in RUNS/EXPERIMENT/slurm/logs",
    "error": "nothing: logs are in RUNS/EXPERIMENT/slurm/logs",
}


def main(words: list[str]) -> int:
    arguments, rest = parse(words)
    plan = make_plan(arguments, rest)
    cores = available_cores()
    small = plan[0].experiment.net.kind == "mlp" or plan[0].experiment.net.channels <= 8
    workers = arguments.jobs or (cores if small else 1)
    threads = max(1, cores // workers) if arguments.on == "local" else max(1, int(arguments.cpus_per_run))
    for job in plan:
        job.train += ["--threads", str(threads)]
        job.evaluate += ["--threads", str(threads)]
    todo = [job for job in plan if job.next_words() is not None]
    where = f"{workers} at once" if arguments.on == "local" else f"on {arguments.on}"
    print(f"{len(plan)} runs of {arguments.experiment}: {len(plan) - len(todo)} finished, {len(todo)} to do, {where}")
    if arguments.dry_run:
        return dry_run(plan, workers if arguments.on == "local" else arguments.jobs or 1, threads)
    sys.stdout.flush()
    before = signal.getsignal(signal.SIGTERM)
    try:
        left = {"local": on_local, "ray": on_ray, "slurm": on_slurm}[arguments.on](plan, arguments, workers)
    except (KeyboardInterrupt, Stopped) as error:
        again = "the jobs stay in SLURM's queue (scancel ends them); run the same command again to look at them"
        saved = "everything is saved, run the same command again to go on"
        print(f"interrupted; {again if arguments.on == 'slurm' else saved}", file=sys.stderr)
        return 143 if isinstance(error, Stopped) else 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if left:
        return 0
    failed = [job for job in plan if job.stage == "failed"]
    for job in failed:
        print(f"failed: {job.name}: {job.problem}", file=sys.stderr)
    print(
        f"{len(plan) - len(failed)} of {len(plan)} runs are complete; bsvi report {arguments.runs / arguments.experiment}"
    )
    return 1 if failed else 0


def on_local(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    signal.signal(signal.SIGTERM, _stop)
    run_jobs(plan, workers, Display(plan))
    return False


def on_ray(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    from bsvi.engines.on_ray import RayEngine, RaySettings

    settings = RaySettings(arguments.address, arguments.cpus_per_run, arguments.gpus_per_run, arguments.jobs)
    if all(job.next_words() is None for job in plan):
        return False
    display, received = Display(plan), Received()
    with RayEngine(settings) as engine, received:
        print(engine.describe(), flush=True)

        def show(jobs: list[Job]) -> None:
            display(jobs)
            received.check()

        engine.run(plan, show)
    return False


def on_slurm(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    """True when the jobs were submitted and are left alone."""
    from bsvi.engines.on_slurm import SlurmEngine, SlurmSettings

    settings = SlurmSettings(
        folder=arguments.runs / arguments.experiment / "slurm",
        name=f"bsvi-{arguments.experiment}",
        partition=arguments.partition,
        minutes=arguments.time_limit,
        cpus=int(arguments.cpus_per_run),
        gpus=int(arguments.gpus_per_run),
        options=arguments.slurm_option,
        at_once=arguments.jobs,
    )
    engine = SlurmEngine(settings)
    ids = engine.submit(plan)
    if ids:
        print(f"SLURM jobs {', '.join(ids.values())}; logs in {settings.folder / 'logs'}", flush=True)
    if arguments.submit_only:
        return True
    signal.signal(signal.SIGTERM, _stop)
    engine.follow(plan, ids, Display(plan))
    return False


class Stopped(Exception):
    """SIGTERM came."""


class Received:
    """Takes note of SIGINT and SIGTERM: an exception inside Ray's code would break it. A second one is obeyed at once."""

    def __enter__(self) -> "Received":
        self.number = 0
        self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.number = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def check(self) -> None:
        if self.number:
            raise KeyboardInterrupt if self.number == signal.SIGINT else Stopped


def _stop(number: int, frame: object) -> None:
    raise Stopped


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a sweep, checked, and the words for bsvi train."""
    parser = argparse.ArgumentParser(
        prog="bsvi sweep", description=__doc__, epilog="Further flags go to bsvi train: --steps 2000 --svi.lr 0.1"
    )
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    add("--methods", default="all", help="all, or names with commas: vae,svi,bsvi-sir")
    add("--seeds", default="0", help="0, or 0,3, or 0:4 for 0 1 2 3 (default 0)")
    add("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    add("--jobs", default="auto", help="runs at once; auto: one per core for small networks, else one")
    add("--k", type=int, default=500, help="of the evaluation (default 500)")
    add("--examples", type=int, help="evaluate the first N test images only")
    add("--iwae", type=int, nargs="*", help="numbers of IWAE draws (default k to 5k)")
    add("--data-dir", type=Path)
    add("--dry-run", action="store_true", help="show the plan and an estimate of its time, do nothing")
    add("--on", choices=("local", "ray", "slurm"), default="local", help="this machine, a Ray cluster, or SLURM")
    add("--cpus-per-run", type=float, default=1.0, metavar="N", help="ray, slurm: CPUs of a run (default 1)")
    add("--gpus-per-run", type=float, default=0.0, metavar="N", help="ray, slurm: GPUs of a run; ray: 0.5 is possible")
    add("--address", metavar="HOST:PORT", help="ray: a running cluster, or auto (default: a Ray of its own, here)")
    add("--partition", metavar="P", help="slurm: where jobs go")
    add(
        "--time-limit",
        metavar="T",
        help="slurm: of one job, HH:MM:SS or minutes (default 60), after which it requeues itself; else of bsvi train",
    )
    add(
        "--slurm-option",
        action="append",
        default=[],
        metavar="K=V",
        help="slurm: a flag of sbatch, account=me; repeat it",
    )
    add("--submit-only", action="store_true", help="slurm: end when all is in the queue")
    arguments, rest = parser.parse_known_args(words)
    check(arguments)
    if arguments.on != "slurm" and arguments.time_limit is not None:
        rest += ["--time-limit", arguments.time_limit]  # seconds, as ever
    if arguments.on == "slurm":
        arguments.time_limit = minutes(arguments.time_limit or "60")
        arguments.slurm_option = slurm_options(arguments.slurm_option)
    if arguments.on != "local":  # other machines have other working folders
        arguments.runs = arguments.runs.absolute()
        arguments.data_dir = arguments.data_dir.absolute() if arguments.data_dir else None
    return arguments, rest


def check(arguments: argparse.Namespace) -> None:
    """Refuse numbers that make no sense, and flags of another engine, which would silently do nothing."""
    of: dict[str, tuple[Any, str]] = {
        "address": (None, "ray"),
        "partition": (None, "slurm"),
        "slurm_option": ([], "slurm"),
        "submit_only": (False, "slurm"),
        "gpus_per_run": (0.0, "ray, slurm"),
        "cpus_per_run": (1.0, "ray, slurm"),
    }
    for name, (default, engines) in of.items():
        if getattr(arguments, name) != default and arguments.on not in engines:
            raise ValueError(f"--{name.replace('_', '-')} goes with --on {engines.replace(', ', ' or --on ')}")
    if arguments.jobs != "auto" and not (arguments.jobs.isdecimal() and int(arguments.jobs) > 0):
        raise ValueError(f"--jobs takes auto or a number of at least 1, got {arguments.jobs!r}")
    arguments.jobs = None if arguments.jobs == "auto" else int(arguments.jobs)
    for name in ("cpus", "gpus"):
        value, least = getattr(arguments, f"{name}_per_run"), 0.01 if name == "cpus" else 0.0
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"--{name}-per-run must be a number above 0, got {value:g}")
        if value != int(value) and (arguments.on == "slurm" or value > 1):
            raise ValueError(f"--{name}-per-run must be whole here, got {value:g}; Ray alone can share one among runs")


def minutes(text: str) -> int:
    """A time limit as SLURM writes it, in minutes, rounded up.

    >>> minutes("90"), minutes("12:00:00"), minutes("1-00:00:30")
    (90, 720, 1441)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)|(\d+)", text)
    days, hours, mins, seconds, plain = (int(part or 0) for part in (found.groups() if found else [0] * 5))
    total = math.ceil(plain + days * 1440 + hours * 60 + mins + seconds / 60)
    if total < 1:
        raise ValueError(f"--time-limit takes minutes, HH:MM:SS or D-HH:MM:SS, of at least a minute, got {text!r}")
    return total


def slurm_options(words: list[str]) -> dict[str, str | bool]:
    """Flags of sbatch by name; those that bsvi sets itself are refused."""
    found: dict[str, str | bool] = {}
    for word in words:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or (equals and not value):
            raise ValueError(f"--slurm-option takes a long flag of sbatch as KEY=VALUE or KEY, got {word!r}")
        if name in OWN_OPTIONS:
            raise ValueError(f"--slurm-option {name} is set by bsvi; write {OWN_OPTIONS[name]}")
        found[name] = value if equals else True
    return found
