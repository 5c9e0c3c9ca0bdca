"""How a run begins: all is checked first; then its folder, for a fork the first checkpoint, and config.json are written."""

import contextlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.commands.about import check_same, describe, identity, stored_about, versions
from bsvi.commands.train_flags import Command
from bsvi.experiments.config import Experiment
from bsvi.runs.folder import Run, RunError

if TYPE_CHECKING:
    from torch import Tensor

    from bsvi.experiments.build import Built

    Found = tuple[dict[str, Tensor], dict[str, Any]]

LEFT = ("result.json", "model.safetensors", "metrics.jsonl")  # what another run may have left, beside checkpoints


def default_folder(e: Experiment) -> Path:
    return Path("runs") / e.experiment / f"{e.method}-seed{e.seed}"


def check_words(command: Command, run: Run) -> None:
    """RunError for what is known to fail before data are loaded and networks built."""
    if command.logger == "wandb" and importlib.util.find_spec("wandb") is None:
        raise RunError("--logger wandb needs the extra: pip install 'bsvi[wandb]'")
    folder = run.folder.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    reason = ""
    if not nearest.is_dir():
        reason = "File exists" if nearest == folder else "Not a directory"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = "Permission denied"
    if reason:
        raise RunError(f"{run.folder} cannot be used ({reason}); choose another folder with --out")


def begin(
    run: Run, command: Command, experiment: Experiment, built: "Built", started: Any, take: Callable[[], None]
) -> dict[str, Any]:
    """Check all there is to check, ``take`` the folder, and write config.json unless it is there; returns what it says."""
    stored, about = stored_about(run, experiment), describe(experiment, built, started)
    if stored is not None:
        check_same(run, stored, about)
        about = stored
    run.identity = identity(about)
    forked: Found | None = None
    source = Run(command.out or default_folder(experiment))
    if stored is None:
        check_unclaimed(run, built, forking=command.fork is not None)
        if command.fork is not None:
            forked = find_fork(run, source, built)
            about["origin"] = origin_of(source, *forked)
    take()
    if stored is None:
        if run.read("config.json") is not None:
            raise RunError(f"{run.folder} was begun by another process meanwhile; run the same command again")
        if forked is not None:
            run.copy_state(source, forked)
        run.write("config.json", about)
    together = f", {built.size} processes" if built.size > 1 else ""
    run.note(
        f"process {os.getpid()}: {experiment.experiment} {experiment.method} seed {experiment.seed}, torch "
        f"{versions()['torch']}, {started.device}, {started.threads} threads{together}"
    )
    return about


def check_unclaimed(run: Run, built: "Built", forking: bool) -> None:
    """RunError where a folder without config.json holds another run, or one that cannot be told from another."""
    from bsvi.training.state import size_limit

    left = [path.name for path in run.checkpoints()]
    left += [name for name in LEFT if os.path.lexists(run.folder / name)]
    if not left or (forking and left == ["metrics.jsonl"]):  # all that a fork killed at its beginning has written
        return
    found = Run(run.folder, run.identity).find(
        size_limit(built.model, built.objective)
    )  # one of another run is refused
    if found is None or not isinstance(found[1].get("identity"), dict):
        raise RunError(
            f"{run.folder} holds {left[0]} but no config.json, so whose it is cannot be told; choose another --out"
        )


def find_fork(run: Run, source: Run, built: "Built") -> "Found":
    """The newest whole checkpoint of another run, which fits these networks."""
    from bsvi.training.state import check_fit, make_optimizer, size_limit

    if source.folder.resolve() == run.folder.resolve():
        raise RunError(f"--fork {run.folder} is the run itself; name a new folder")
    found = source.find(size_limit(built.model, built.objective))
    if found is None:
        raise RunError(
            f"{source.folder} has no checkpoint to fork from; name a run that has one with --out or --resume"
        )
    check_fit(found[0], built.model, built.objective, make_optimizer(built.model, built.objective))
    return found


def origin_of(source: Run, tensors: "dict[str, Tensor]", scalars: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the run that this one goes on from; no part of the run's identity."""
    from bsvi.runs.checkpoint import digest
    from bsvi.training.state import part

    about: dict[str, Any] = {}
    with contextlib.suppress(RunError):
        about = source.read("config.json") or {}
    return {
        "folder": str(source.folder.absolute()),
        "step": scalars["step"],
        "weights": digest(part(tensors, "model.")),
        "method": about.get("method"),
        "how": "fork",
    }
