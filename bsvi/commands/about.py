"""What config.json of a run says, and whether a run that goes on is still the same one."""

import platform
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.experiments.changes import list_differences
from bsvi.experiments.config import Experiment
from bsvi.runs.folder import Run, RunError
from bsvi.tables.data_sets import DATA_SETS

if TYPE_CHECKING:
    from bsvi.experiments.build import BuiltExperiment


def check_stored_about(run: Run, experiment: Experiment) -> dict[str, Any] | None:
    """config.json of a run that was begun; RunError, naming the fields, if with another configuration."""
    stored = read_about(run)
    if changed := list_changed_fields(run, experiment):
        raise RunError(
            f"{run.folder} was started with another configuration ({'; '.join(changed)}); "
            "use the same flags, another --out, or --fork NEW to go on from it"
        )
    return stored


def read_about(run: Run) -> dict[str, Any] | None:
    """config.json of a run, or None where there is none; RunError where it is damaged."""
    stored = run.read("config.json", "config", "versions", "data")
    if stored is not None and not all(isinstance(stored[name], dict) for name in ("config", "versions", "data")):
        raise RunError(f"{run.folder / 'config.json'} is damaged; restore it, or start anew with another --out")
    return stored


def list_changed_fields(run: Run, experiment: Experiment) -> list[str]:
    """The fields in which a run that was begun differs from an experiment, as 'steps: 1000 -> 2000'."""
    stored = read_about(run)
    if stored is None:
        return []
    if has_moved_images(stored, experiment):
        data = experiment.data.model_copy(update={"name": stored["config"]["data"]["name"]})
        experiment = experiment.model_copy(update={"data": data})
    known = Experiment().model_dump(mode="json") | stored["config"]  # an older version did not know some fields
    return list_differences(known, experiment.model_dump(mode="json"))


def has_moved_images(stored: dict[str, Any], experiment: Experiment) -> bool:
    """Whether the experiment names a run's own images by another path: the same place, or the same images by their hash."""
    data = stored["config"].get("data")
    old, new = data.get("name") if isinstance(data, dict) else None, experiment.data.name
    if old is None or old == new or old in DATA_SETS or new in DATA_SETS:
        return False
    if str(Path(new).resolve()) == stored["data"].get("path"):
        return True
    from bsvi.experiments.build import load_data

    return load_data(experiment).sha256 == stored["data"].get("sha256")


def describe_run(experiment: Experiment, built: "BuiltExperiment", started: Any) -> dict[str, Any]:
    """What config.json says: written before the first step."""
    from bsvi.experiments.build import describe_data

    return {
        "experiment": experiment.experiment,
        "method": experiment.method,
        "seed": experiment.seed,
        "k": experiment.steps_of_refinement,
        "config": experiment.model_dump(mode="json"),
        "versions": list_versions(),
        "git": find_revision(),
        "device": started.device.type,
        "threads": started.threads,
        "processes": built.size,
        "data": describe_data(built.dataset),
        "id": uuid.uuid4().hex,
    }


def make_identity(about: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint belongs to, by field."""
    flat: dict[str, Any] = {"bsvi": about["versions"].get("bsvi"), "data": about["data"].get("sha256")}

    def add(values: dict[str, Any], prefix: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                add(value, f"{prefix}{name}.")
            else:
                flat[f"{prefix}{name}"] = value

    add(about["config"], "")
    return flat


def check_same(run: Run, stored: dict[str, Any], about: dict[str, Any]) -> None:
    """Refuse to go on with another version or other data; warn where the result can differ in the last bits."""
    old, new = stored["versions"].get("bsvi"), about["versions"]["bsvi"]
    if old != new:
        raise RunError(f"{run.folder} was started by bsvi {old}, this is {new}; use that version, or --fork NEW")
    if stored["data"].get("sha256") != about["data"]["sha256"]:
        raise RunError(f"the data have changed since {run.folder} was started; use the same files, or --fork NEW")
    names = ("device", "threads", "processes", "compile")
    then = {"torch": stored["versions"].get("torch"), "processes": 1, **{n: stored[n] for n in names if n in stored}}
    now = {"torch": about["versions"]["torch"], **{name: about[name] for name in names if name in then}}
    if changed := list_differences(then, now):
        run.warn(f"resumed with {'; '.join(changed)}: the result will not be bitwise that of one uninterrupted run")


def list_versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    from bsvi import __version__

    named = {name: version(name) for name in ("numpy", "safetensors")}
    return {"bsvi": __version__, "torch": torch.__version__, "python": platform.python_version(), **named}


def find_revision() -> str | None:
    """The git revision of the folder that bsvi runs from, with + where it has changes; None without git."""
    here = Path(__file__).parent
    try:
        # looking must not take the index lock, in which the user's own commands would be in the way
        words = [
            "git",
            "--no-optional-locks",
            "-C",
            str(here),
            "describe",
            "--always",
            "--dirty=+",
            "--abbrev=12",
            "--exclude=*",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
