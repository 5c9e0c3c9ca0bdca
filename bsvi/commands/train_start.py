"""How a run begins: all is checked first; then its folder, its first checkpoint (--fork, --from) and config.json are written."""

import contextlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.commands.about import (
    check_same,
    check_stored_about,
    describe_run,
    list_changed_fields,
    list_versions,
    make_identity,
)
from bsvi.commands.compilation import decide
from bsvi.commands.train_flags import Command
from bsvi.experiments.config import Experiment
from bsvi.runs.folder import Run, RunError
from bsvi.system.files import printable

if TYPE_CHECKING:
    from torch import Tensor

    from bsvi.experiments.build import BuiltExperiment

    Found = tuple[dict[str, Tensor], dict[str, Any]]

LEFT = ("result.json", "model.safetensors", "metrics.jsonl")  # what another run may have left, beside checkpoints


def default_folder(e: Experiment) -> Path:
    method = (e.phases or e.method).replace(":", "-").replace(",", "-").replace(" ", "")  # vae-8000-bsvi-sir-2000
    return Path("runs") / e.experiment / f"{method}-seed{e.seed}"


def check_words(command: Command, run: Run) -> None:
    """RunError for what is known to fail before data are loaded and networks built."""
    if command.fork is not None and command.from_ is not None:
        raise RunError("--fork goes on with all of a run, --from with its weights alone; give one of them")
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
    run: Run, command: Command, experiment: Experiment, built: "BuiltExperiment", started: Any, take: Callable[[], None]
) -> dict[str, Any]:
    """Check all there is to check, ``take`` the folder, and write config.json unless it is there; returns what it says."""
    stored, about = check_stored_about(run, experiment), describe_run(experiment, built, started)
    about["compile"] = decide(stored, built, started)
    if stored is not None:
        check_same(run, stored, about)
        about = stored | {"compile": about["compile"]}
    run.identity = make_identity(about)
    first: Found | None = None  # the checkpoint that it begins with
    source = Run(command.from_ or command.out or default_folder(experiment))
    if stored is None:
        check_unclaimed(run, built, begun=command.fork is not None or command.from_ is not None)
        if command.fork is not None:
            first = find_fork(run, source, built)
            about["origin"] = describe_origin(source, first, "fork", find_method(source), first[1]["step"])
            about["origin"]["only_longer"] = is_only_longer(source, experiment)
        elif command.from_ is not None:
            first, method, step = take_weights(source, built)
            about["origin"] = describe_origin(source, first, "from", method, step)
    elif command.from_ is not None:
        check_origin(run, stored, source)
    take()
    if stored is None:
        if run.read("config.json") is not None:
            raise RunError(f"{run.folder} was begun by another process meanwhile; run the same command again")
        if first is not None:
            run.copy_state(source, first)
            run.note(f"begins with {about['origin']}")
        run.write("config.json", about)
    together = f", {built.size} processes" if built.size > 1 else ""
    run.note(
        f"process {os.getpid()}: {experiment.experiment} {experiment.phases or experiment.method} seed {experiment.seed}, torch "
        f"{list_versions()['torch']}, {started.device}, {started.threads} threads{together}"
    )
    return about


def check_unclaimed(run: Run, built: "BuiltExperiment", begun: bool) -> None:
    """RunError where a folder without config.json holds another run, or one that cannot be told from another."""
    from bsvi.training.state import size_limit

    left = [path.name for path in run.checkpoints()]
    left += [name for name in LEFT if os.path.lexists(run.folder / name)]
    if not left or (begun and left == ["metrics.jsonl"]):  # all that was written, if killed before its first checkpoint
        return
    # one of another run is refused
    found = Run(run.folder, run.identity).find(size_limit(built.model, built.objective))
    if found is None or not isinstance(found[1].get("identity"), dict):
        raise RunError(
            f"{run.folder} holds {left[0]} but no config.json, so whose it is cannot be told; choose another --out"
        )


def find_fork(run: Run, source: Run, built: "BuiltExperiment") -> "Found":
    """The newest whole checkpoint of another run, which fits these networks."""
    from bsvi.training.state import TrainingState, size_limit

    if source.folder.resolve() == run.folder.resolve():
        raise RunError(f"--fork {run.folder} is the run itself; name a new folder")
    found = source.find(size_limit(built.model, built.objective))
    if found is None:
        raise RunError(
            f"{source.folder} has no checkpoint to fork from; name a run that has one with --out or --resume"
        )
    TrainingState(built.model, built.objective_at(found[1]["step"])).check_fit(found[0])
    return found


def take_weights(source: Run, built: "BuiltExperiment") -> "tuple[Found, str, int]":
    """A run's best weights (or those of a shared file) as the state of a run that has not taken a step; method and step.

    Optimiser, buffer weights, random state and early stopping are those of a new run.
    """
    import torch

    from bsvi.experiments.trained import load_trained
    from bsvi.training.state import TrainingState

    with torch.random.fork_rng(devices=[built.device] if built.device.type == "cuda" else []):
        trained = load_trained(source.folder, built.device)  # which draws from the random state
    theirs, ours = (str(sha256) for sha256 in (trained.about["data"]["sha256"], built.dataset.sha256))
    if theirs != ours:
        raise RunError(
            f"{source.folder} was trained on other images (data hash {theirs[:12]}, here {ours[:12]}); "
            "--from takes weights of the same data"
        )
    state = TrainingState(built.model, built.objective_at(0))
    tensors, scalars = state.capture()
    tensors = {name: value for name, value in tensors.items() if not name.startswith("model.")}
    tensors |= {f"model.{name}": value for name, value in trained.model.state_dict().items()}
    state.check_fit(tensors)
    return (tensors, {**scalars, "step": 0, "metrics_end": 0}), trained.experiment.method, trained.step


def check_origin(run: Run, stored: dict[str, Any], source: Run) -> None:
    """RunError where a run that goes on was begun elsewhere than at ``source``."""
    origin = stored.get("origin")
    origin = origin if isinstance(origin, dict) else {}
    if origin.get("how") != "from" or origin.get("folder") != str(source.folder.absolute()):
        began = f"at {printable(origin['folder'])}" if origin.get("folder") else "at the beginning"
        raise RunError(
            f"{run.folder} began {began}, not at {source.folder}; choose another --out, or leave --from out to go on"
        )


def describe_origin(source: Run, found: "Found", how: str, method: str | None, step: int) -> dict[str, Any]:
    """What config.json says of the run that this one goes on from; no part of the run's identity."""
    from bsvi.runs.checkpoint import digest
    from bsvi.training.state import select_prefix

    weights = digest(select_prefix(found[0], "model."))
    return {"folder": str(source.folder.absolute()), "step": step, "weights": weights, "method": method, "how": how}


def is_only_longer(source: Run, experiment: Experiment) -> bool:
    """Whether an experiment differs from that of a run in nothing but how long it trains."""
    with contextlib.suppress(RunError):
        return {line.partition(":")[0] for line in list_changed_fields(source, experiment)} <= {"seconds", "steps"}
    return False


def find_method(run: Run) -> str | None:
    """The method that config.json of a run names, where it can be read."""
    with contextlib.suppress(RunError):
        return (run.read("config.json") or {}).get("method")
    return None
