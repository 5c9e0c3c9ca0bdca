"""The words of ``bsvi sweep``, checked before anything starts; what is not its own goes to bsvi train."""

import argparse
import math
import re
from pathlib import Path
from typing import Any

from bsvi.commands.evaluate_estimators import LEAST, add_estimators
from bsvi.experiments.config import EXPERIMENTS, LONGEST
from bsvi.system.terminal import Parser
from bsvi.tables.engines import ENGINES, describe_engines, flags_of_others
from bsvi.tables.methods import METHODS_HELP

DESCRIPTION = "Train and evaluate several methods and seeds: all that is not finished yet. Run it again to go on."
INSTEAD = {  # flags of bsvi train that would make all runs one
    "--out": "use --runs for the folder of all of them",
    "--method": "use --methods",
    "--seed": "use --seeds",
    "--phases": "use --methods, as vae,vae:8000+bsvi-sir:2000",
    "--fork": "fork them one by one with bsvi train",
    "--resume": "the same bsvi sweep again goes on with what is not finished",
}
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


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a sweep, checked, and the words for bsvi train."""
    parser = Parser(
        prog="bsvi sweep",
        description=DESCRIPTION,
        epilog="Further flags go to bsvi train: --steps 2000 --svi.lr 0.1",
        allow_abbrev=False,  # they may begin like one of these
    )
    add = parser.add_argument
    add("experiment", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    add("--methods", default="all", help=f"{METHODS_HELP}; vae:8000+bsvi-sir:2000 for phases")
    add("--seeds", default="0", help="0, or 0,3, or 0:4 for 0 1 2 3 (default 0)")
    add("--runs", type=Path, default=Path("runs"), help="where run folders go (default runs)")
    add("--jobs", default="auto", help="runs at once; auto: one per core for small networks, else one")
    add("--k", type=int, default=500, help="of the evaluation (default 500)")
    add("--examples", type=int, help="evaluate the first N test images only")
    add("--iwae", type=int, nargs="*", help="numbers of IWAE draws (default k to 5k)")
    add_estimators(parser)
    add("--pictures", action="store_true", help="also draw the images of bsvi sample, for runs of the first seed")
    add(
        "--equal-time",
        metavar="SECONDS",
        help="train every run for so many CPU seconds of updates; 100,300: a table for each, and runs go on from the last",
    )
    add("--data-dir", type=Path, help="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    add("--threads", type=int, metavar="N", help="CPU threads of a run (default: the cores shared among the runs)")
    add("--dry-run", action="store_true", help="show the plan and an estimate of its time, do nothing")
    add("--on", choices=tuple(ENGINES), default="local", help=describe_engines())
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
    check_flags(arguments)
    for word in rest:
        if (flag := word.split("=", 1)[0]) in INSTEAD:
            raise ValueError(f"{flag} is for one run, a sweep has several; {INSTEAD[flag]}")
    arguments.equal_time = parse_budgets(arguments.equal_time)
    if len(arguments.equal_time) > 1 and arguments.submit_only:
        raise ValueError(
            "--submit-only waits for nothing, and the second of two budgets waits for the first; give one of them"
        )
    if not ENGINES[arguments.on].job_limit and arguments.time_limit is not None:
        rest += ["--time-limit", arguments.time_limit]  # seconds, as ever
    if ENGINES[arguments.on].job_limit:
        arguments.time_limit = parse_minutes(arguments.time_limit or "60")
    arguments.slurm_option = parse_slurm_options(arguments.slurm_option)
    if not ENGINES[arguments.on].here:  # other machines have other working folders
        arguments.runs = arguments.runs.absolute()
        arguments.data_dir = arguments.data_dir.absolute() if arguments.data_dir else None
    return arguments, rest


def parse_budgets(text: str | None) -> list[float]:
    """The seconds that all runs are given, in order; none where updates are counted.

    >>> parse_budgets("300,100"), parse_budgets(None)
    ([100.0, 300.0], [])
    """
    try:
        budgets = sorted({float(word) for word in text.split(",")}) if text is not None else []
    except ValueError:
        budgets = [math.nan]
    if not all(0 < seconds <= LONGEST for seconds in budgets):
        raise ValueError(
            f"--equal-time takes the seconds of updates of each run, above 0, as 100 or 100,300, got {text!r:.80}"
        )
    return budgets


def share_time(seconds: float, rest: list[str]) -> list[str]:
    """The words for bsvi train that end every run after so many seconds of updates, and early only where that is asked for.

    >>> share_time(100.0, []), share_time(100.0, ["--patience", "8"])
    (['--seconds', '100.0', '--patience', '0'], ['--seconds', '100.0', '--patience', '8'])
    """
    given = {word.split("=", 1)[0] for word in rest}
    return ["--seconds", str(seconds), *([] if "--patience" in given else ["--patience", "0"]), *rest]


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse numbers that make no sense, and flags of another engine, which would silently do nothing."""
    unset: dict[str, Any] = {"slurm_option": [], "submit_only": False, "gpus_per_run": 0.0, "cpus_per_run": 1.0}
    for name, engines in flags_of_others(arguments.on).items():
        if getattr(arguments, name, None) != unset.get(name):
            raise ValueError(f"--{name.replace('_', '-')} goes with --on {' or --on '.join(engines)}")
    if arguments.jobs != "auto" and not (arguments.jobs.isdecimal() and int(arguments.jobs) > 0):
        raise ValueError(f"--jobs takes auto or a number of at least 1, got {arguments.jobs!r}")
    arguments.jobs = None if arguments.jobs == "auto" else int(arguments.jobs)
    for name in ("k", "examples", "threads", "iwae", "passes"):
        value = getattr(arguments, name)
        fewest, most = LEAST if name == "passes" else 1, 1024 if name == "threads" else LONGEST
        given = value if isinstance(value, list) else [value]
        if wrong := [n for n in given if n is not None and not fewest <= n <= most]:
            raise ValueError(f"--{name} must be from {fewest} to {most:,}, got {wrong[0]}")
    for name in ("cpus", "gpus"):
        value, least = getattr(arguments, f"{name}_per_run"), 0.01 if name == "cpus" else 0.0
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"--{name}-per-run must be a number above 0, got {value:g}")
        if value != int(value) and (not ENGINES[arguments.on].fractions or value > 1):
            raise ValueError(f"--{name}-per-run must be whole here, got {value:g}; Ray alone can share one among runs")


def parse_minutes(text: str) -> int:
    """A time limit as SLURM writes it, in minutes, rounded up.

    >>> parse_minutes("90"), parse_minutes("12:00:00"), parse_minutes("1-00:00:30")
    (90, 720, 1441)
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)|(\d+)", text)
    days, hours, mins, seconds, plain = (int(part or 0) for part in (found.groups() if found else [0] * 5))
    total = math.ceil(plain + days * 1440 + hours * 60 + mins + seconds / 60)
    if total < 1:
        raise ValueError(f"--time-limit takes minutes, HH:MM:SS or D-HH:MM:SS, of at least a minute, got {text!r}")
    return total


def parse_slurm_options(words: list[str]) -> dict[str, str | bool]:
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
