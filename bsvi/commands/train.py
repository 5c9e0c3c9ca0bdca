"""``bsvi train EXPERIMENT``: train one method with one seed, in a run folder that survives anything."""

import contextlib
import importlib.util
import os
import platform
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from bsvi.commands.train_flags import Command, parse
from bsvi.config import Experiment, differences
from bsvi.runs import Run, RunError

if TYPE_CHECKING:
    from bsvi.experiments import Built

SIGNAL_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 0}


def main(words: list[str]) -> int:
    try:
        with stopped_at_once():
            command = parse(words)
            experiment = Experiment.model_validate({name: getattr(command, name) for name in Experiment.model_fields})
            run = Run(command.fork or command.out or default_folder(experiment))
            if finished_before(run, experiment):
                return 0
            with run:  # before torch is imported: a second process is refused at once
                return train_in(run, command, experiment)
    except Stopped as stopped:
        print(f"stopped by {stopped} before the first step; run the same command again to go on")
        return SIGNAL_CODES[str(stopped)]


def default_folder(e: Experiment) -> Path:
    return Path("runs") / e.experiment / f"{e.method}-seed{e.seed}"


class Stopped(BaseException):
    """A signal at start-up, when there is nothing to save; while training goes on, bsvi.signals takes them."""


@contextlib.contextmanager
def stopped_at_once() -> Iterator[None]:
    """Within this context the signals that end a run raise Stopped."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: the owner of that thread decides
        before = {name: signal.signal(getattr(signal, name), stop) for name in SIGNAL_CODES}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def stored_about(run: Run, experiment: Experiment) -> dict[str, Any] | None:
    """config.json of a run that was begun; RunError, naming the fields, if with another configuration."""
    stored = run.read("config.json", "config", "versions", "data")
    if stored is None:
        return None
    if not all(isinstance(stored[name], dict) for name in ("config", "versions", "data")):
        raise RunError(f"{run.folder / 'config.json'} is damaged; restore it, or start anew with another --out")
    changed = differences(stored["config"], experiment.model_dump(mode="json"))
    if changed:
        raise RunError(
            f"{run.folder} was started with another configuration ({'; '.join(changed)}); "
            "use the same flags, another --out, or --fork NEW to go on from it"
        )
    return stored


def finished_before(run: Run, experiment: Experiment) -> bool:
    """Whether the run has its result, which is printed; needs no lock, and works in a folder one cannot write to."""
    if stored_about(run, experiment) is None:
        return False
    result = run.read("result.json", "steps", "best_step", "best_valid_bound")
    if result is not None:
        report(run, result, "finished before")
    return result is not None


def train_in(run: Run, command: Command, experiment: Experiment) -> int:
    """Train in a run folder that this process owns; returns the exit code."""
    stored = stored_about(run, experiment)

    from bsvi import experiments, runtime
    from bsvi.training import NotFinite, train
    from bsvi.watch import Screen

    started = runtime.start(runtime.Runtime(command.device, command.threads, command.compile))
    built = experiments.build(experiment, started.device, command.data_dir, progress=not command.quiet)
    about = describe(experiment, built, started)
    if stored is not None:
        check_same(run, stored, about)
        about = stored
    run.identity = identity(about)
    if stored is None:
        if command.fork is not None:
            start_fork(run, command.out or default_folder(experiment), built)
        run.write("config.json", about)
    title = f"{experiment.experiment} {experiment.method} seed {experiment.seed}"
    run.note(
        f"process {os.getpid()}: {title}, torch {versions()['torch']}, {started.device}, {started.threads} threads"
    )
    with Screen(title, experiment.steps, make_loggers(command, run, about), command.quiet) as screen:
        for line in started.notes:
            screen.say(line)
        runtime.compile_decoder(built.model.decoder, started.compile, screen.say)
        settings = built.training(time_limit=command.time_limit, save_every=command.save_every)
        try:
            result = train(built.model, built.objective, built.batches, built.valid, settings, run, screen, about)
        except (NotFinite, RunError) as error:
            run.note(f"error: {error}")
            raise
    if result.finished:
        report(run, vars(result), f"finished ({result.stopped})")
        return 0
    say(run, f"saved at step {result.steps} ({result.stopped}); run the same command again to go on: {run.folder}")
    return SIGNAL_CODES.get(result.stopped, 0)


def describe(experiment: Experiment, built: "Built", started: Any) -> dict[str, Any]:
    """What config.json says: written before the first step."""
    from bsvi.experiments import describe_data

    return {
        "experiment": experiment.experiment,
        "method": experiment.method,
        "seed": experiment.seed,
        "k": experiment.svi.steps,
        "config": experiment.model_dump(mode="json"),
        "versions": versions(),
        "git": revision(),
        "device": str(started.device),
        "threads": started.threads,
        "data": describe_data(built.dataset),
        "id": uuid.uuid4().hex,
    }


def identity(about: dict[str, Any]) -> dict[str, Any]:
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
    then = {"torch": stored["versions"].get("torch"), "device": stored.get("device"), "threads": stored.get("threads")}
    now = {"torch": about["versions"]["torch"], "device": about["device"], "threads": about["threads"]}
    if changed := differences(then, now):
        run.warn(f"resumed with {'; '.join(changed)}: the result will not be bitwise that of one uninterrupted run")


def start_fork(run: Run, source: Path, built: "Built") -> None:
    """Take over the newest whole checkpoint of another run, and its metrics so far."""
    from bsvi.state import size_limit

    if source.resolve() == run.folder.resolve():
        raise RunError(f"--fork {run.folder} is the run itself; name a new folder")
    if not run.copy_state(Run(source), size_limit(built.model, built.objective)):
        raise RunError(f"{source} has no checkpoint to fork from; name a run that has one with --out or --resume")


def report(run: Run, result: dict[str, Any], how: str) -> None:
    bound = result["best_valid_bound"]
    best = f"best validation bound {bound:.3f} at step {result['best_step']}" if bound is not None else "no validation"
    say(run, f"{how}: {run.folder}: {result['steps']} steps, {best}")


def say(run: Run, line: str) -> None:
    """The last line of a run, on the screen and in log.txt."""
    with contextlib.suppress(OSError):  # whoever read it may have gone
        print(line, flush=True)
    run.note(line)


def make_loggers(command: Command, run: Run, about: dict[str, Any]) -> list[Any]:
    """TensorBoard where it is installed, wandb where it is asked for."""
    from bsvi.watch import TensorBoard, Wandb

    if command.logger == "wandb":
        if importlib.util.find_spec("wandb") is None:
            raise RunError("--logger wandb needs the extra: pip install 'bsvi[wandb]'")
        return [Wandb(run.folder, about)]
    if command.logger == "tensorboard" and importlib.util.find_spec("tensorboard") is not None:
        return [TensorBoard(run.folder)]
    return []


def versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    from bsvi import __version__

    named = {name: version(name) for name in ("numpy", "safetensors")}
    return {"bsvi": __version__, "torch": torch.__version__, "python": platform.python_version(), **named}


def revision() -> str | None:
    """The git revision of the folder that bsvi runs from, with + where it has changes; None without git."""
    here = Path(__file__).parent
    try:
        words = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
