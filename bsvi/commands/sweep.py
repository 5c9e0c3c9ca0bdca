"""``bsvi sweep EXPERIMENT --methods all --seeds 0:4``: train and evaluate all that is not finished yet."""

import argparse
import signal
import sys
from pathlib import Path

from bsvi.commands.sweep_display import Display
from bsvi.commands.sweep_flags import parse, share_time
from bsvi.commands.sweep_plan import make_plan, print_plan
from bsvi.experiments.architectures import find_architecture
from bsvi.sweeps.jobs import Job, run_jobs
from bsvi.system.runtime import count_cores as available_cores
from bsvi.tables.engines import ENGINES


def main(words: list[str]) -> int:
    arguments, rest = parse(words)
    budgets, source, codes = arguments.equal_time, None, [0]
    if len(budgets) < 2:
        return sweep(arguments, share_time(budgets[0], rest) if budgets else rest)
    for seconds in budgets:  # each table in a folder of its own; every run goes on where the last table has it
        runs = arguments.runs / f"{seconds:g}s"
        print(f"{seconds:g} seconds of updates, in {runs}")
        codes.append(sweep(argparse.Namespace(**vars(arguments) | {"runs": runs}), share_time(seconds, rest), source))
        if codes[-1] in (130, 143):
            break
        source = runs
    return max(codes)


def sweep(arguments: argparse.Namespace, rest: list[str], source: Path | None = None) -> int:
    """Do what is not finished; runs begin where those of the same names in ``source`` ended. Returns the exit code."""
    plan = make_plan(arguments, rest, source)
    cores = available_cores()
    net = plan[0].experiment.net
    small = find_architecture(net).is_small(net)
    workers = arguments.jobs or (cores if small else 1)
    engine = ENGINES.find(arguments.on)
    share = cores // workers if engine.here else int(arguments.cpus_per_run)
    threads = arguments.threads or max(1, share)
    for job in plan:
        job.train += ["--threads", str(threads)]
        job.evaluate += ["--threads", str(threads)]
    todo = [job for job in plan if job.next_words() is not None]
    where = f"{workers} at once" if engine.here else f"on {arguments.on}"
    print(f"{len(plan)} runs of {arguments.experiment}: {len(plan) - len(todo)} finished, {len(todo)} to do, {where}")
    if arguments.dry_run:
        return print_plan(plan, workers if engine.here else arguments.jobs or 1, threads)
    sys.stdout.flush()
    before = signal.getsignal(signal.SIGTERM)
    try:
        left = engine.run(plan, arguments, workers)
    except (KeyboardInterrupt, SweepStopped) as error:
        print(f"interrupted; {engine.interrupted}", file=sys.stderr)
        return 143 if isinstance(error, SweepStopped) else 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if left:
        return 0
    return summarise(plan, arguments.runs / arguments.experiment)


def summarise(plan: list[Job], folder: Path) -> int:
    """Say what became of the runs; returns the exit code. A run that its time limit has ended is no failure."""
    failed = [job for job in plan if job.stage == "failed"]
    stopped = [job for job in plan if job.stage == "stopped"]
    for job in failed:
        print(f"failed: {job.name}: {job.problem}", file=sys.stderr)
    for job in stopped:
        print(f"{job.name}: {job.problem}")
    print(f"{len(plan) - len(failed) - len(stopped)} of {len(plan)} runs are complete; bsvi report {folder}")
    if stopped:
        print("run the same command again to go on")
    return 1 if failed else 0


def find_progress(arguments: argparse.Namespace) -> Path:
    """Where a sweep tells others how far it is: beside the folders of its runs."""
    path: Path = arguments.runs / arguments.experiment / "sweep.json"
    return path


def run_locally(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    signal.signal(signal.SIGTERM, _stop)
    with Display(plan, workers, find_progress(arguments)) as display:
        run_jobs(plan, workers, display)
    return False


def run_on_ray(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    from bsvi.sweeps.on_ray import RayEngine, RaySettings

    settings = RaySettings(arguments.address, arguments.cpus_per_run, arguments.gpus_per_run, arguments.jobs)
    if all(job.next_words() is None for job in plan):
        return False
    display = Display(plan, arguments.jobs or len(plan), find_progress(arguments))
    received = SignalNote()
    with RayEngine(settings) as engine, received:
        print(engine.describe(), flush=True)

        def show(jobs: list[Job]) -> None:
            display(jobs)
            received.check()

        with display:
            engine.run(plan, show)
    return False


def run_on_slurm(plan: list[Job], arguments: argparse.Namespace, workers: int) -> bool:
    """True when the jobs were submitted and are left alone."""
    from bsvi.sweeps.on_slurm import SlurmEngine, SlurmSettings

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
    with Display(plan, arguments.jobs or len(plan), find_progress(arguments)) as display:
        engine.follow(plan, ids, display)
    return False


class SweepStopped(Exception):
    """SIGTERM came."""


class SignalNote:
    """Takes note of SIGINT and SIGTERM: an exception inside Ray's code would break it. A second one is obeyed at once."""

    def __enter__(self) -> "SignalNote":
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
            raise KeyboardInterrupt if self.number == signal.SIGINT else SweepStopped


def _stop(number: int, frame: object) -> None:
    raise SweepStopped
