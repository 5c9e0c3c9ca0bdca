"""The engines of ``bsvi sweep --on NAME``: where its runs are done, one row each. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass

from bsvi.tables.table import Table, later


@dataclass(frozen=True)
class Engine:
    """One row.

    run          ``run(jobs, arguments, workers)`` does every job to its end; it returns True if it leaves them to themselves
    about        where the runs are done, in a few words
    flags        flags of bsvi sweep that go with it alone, or with few others
    here         whether runs share the cores and the working folder of this machine
    fractions    whether a run may have a part of a CPU or of a GPU
    job_limit    whether --time-limit is of one job of its queue, and not of a run
    interrupted  what Ctrl-C leaves behind, and how to go on
    """

    run: Callable[..., bool]
    about: str
    flags: tuple[str, ...] = ()
    here: bool = False
    fractions: bool = False
    job_limit: bool = False
    interrupted: str = "everything is saved, run the same command again to go on"


ENGINES: Table[Engine] = Table(
    "engine",
    {
        "local": Engine(later("bsvi.commands.sweep:run_locally"), "this machine", here=True, fractions=True),
        "ray": Engine(
            run=later("bsvi.commands.sweep:run_on_ray"),
            about="a Ray cluster",
            flags=("address", "cpus_per_run", "gpus_per_run"),
            fractions=True,
        ),
        "slurm": Engine(
            run=later("bsvi.commands.sweep:run_on_slurm"),
            about="SLURM",
            flags=("partition", "slurm_option", "submit_only", "cpus_per_run", "gpus_per_run"),
            job_limit=True,
            interrupted="the jobs stay in SLURM's queue (scancel ends them); run the same command again to look at them",
        ),
    },
)


def flags_of_others(engine: str) -> dict[str, list[str]]:
    """The flags that this engine does not know, each with the engines that do.

    >>> flags_of_others("ray")["partition"]
    ['slurm']
    """
    flags = {flag for row in ENGINES.values() for flag in row.flags} - set(ENGINES.find(engine).flags)
    return {flag: [name for name, row in ENGINES.items() if flag in row.flags] for flag in sorted(flags)}


def describe_engines() -> str:
    """For --help."""
    return "; ".join(f"{name}: {row.about}" for name, row in ENGINES.items())
