"""``bsvi train EXPERIMENT``: train one method with one seed, in a run folder that survives anything."""

import importlib.util
import platform
import subprocess
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from bsvi.config import EXPERIMENTS, Experiment, differences, first_problem, read_toml, update
from bsvi.runs import Run, RunError

SIGNAL_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 0}


class Command(Experiment):
    """Train one method on one experiment. Run the same command again to resume; a finished run prints its result."""

    out: Path | None = Field(None, description="run folder (default runs/EXPERIMENT/METHOD-seedN)")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is one")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all cores")
    compile: Literal["auto", "on", "off"] = Field("auto", description="compile the decoder; auto: large ones")
    data_dir: Path | None = Field(None, description="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    time_limit: float = Field(float("inf"), gt=0, description="seconds until the run is saved and left")
    save_every: float = Field(120.0, gt=0, description="seconds between checkpoints")
    logger: Literal["tensorboard", "wandb", "none"] = Field("tensorboard", description="beside metrics.jsonl")
    fork: Path | None = Field(None, description="go on from this run in a new folder, with a changed configuration")
    quiet: bool = Field(False, description="print nothing but the result")


def main(words: list[str]) -> int:
    command = parse(words)
    experiment = Experiment.model_validate({name: getattr(command, name) for name in Experiment.model_fields})
    folder = command.fork or command.out or default_folder(experiment)
    with Run(folder) as run:  # before torch is imported: a second process is refused at once
        if command.fork is not None:
            start_fork(run, command.out or default_folder(experiment))
        return train_in(run, command, experiment)


def default_folder(e: Experiment) -> Path:
    return Path("runs") / e.experiment / f"{e.method}-seed{e.seed}"


def parse(words: list[str]) -> Command:
    """The command from its words: EXPERIMENT or --resume RUN first, then flags; --config file.toml sits between."""
    if words and words[0] == "--resume":
        if len(words) < 2:
            raise RunError("--resume needs a run folder: bsvi train --resume runs/digits/bsvi-sir-seed0")
        folder = Path(words[1])
        stored = Run(folder).read("config.json")
        if stored is None:
            raise RunError(f"{folder} holds no config.json; name a run folder, or start one with bsvi train EXPERIMENT")
        base, words = update(EXPERIMENTS["digits"], stored["config"], str(folder / "config.json")), words[2:]
        return flags(base, ["--out", str(folder), *words], "bsvi train --resume RUN")
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        raise RunError(f"name an experiment first: bsvi train EXPERIMENT; there are {', '.join(EXPERIMENTS)}")
    name, *rest = words
    if name in ("-h", "--help"):
        print(f"usage: bsvi train EXPERIMENT [flags] | --resume RUN\n\nexperiments: {', '.join(EXPERIMENTS)}\n")
        print("bsvi train digits --help lists the flags with their defaults and reasons.")
        raise SystemExit(0)
    if name not in EXPERIMENTS:
        import difflib

        close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise RunError(f"unknown experiment {name!r}; {hint}there are {', '.join(EXPERIMENTS)}")
    base = EXPERIMENTS[name]
    if "--config" in rest:
        at = rest.index("--config")
        if at + 1 == len(rest):
            raise RunError("--config needs a TOML file")
        base = read_toml(Path(rest[at + 1]), base)
        rest = rest[:at] + rest[at + 2 :]
    return flags(base, rest, f"bsvi train {name}")


def flags(base: Experiment, words: list[str], program: str) -> Command:
    import tyro

    config = (tyro.conf.AvoidSubcommands,)
    default = Command.model_construct(**{name: getattr(base, name) for name in Experiment.model_fields})
    try:
        return tyro.cli(Command, args=words, default=default, prog=program, config=config)
    except ValidationError as error:
        raise RunError(first_problem(error)) from None


def start_fork(run: Run, source: Path) -> None:
    """Copy the newest checkpoint of another run, unless this fork has begun already."""
    if run.read("config.json") is None:
        checkpoints = Run(source).checkpoints()
        if not checkpoints:
            raise RunError(f"{source} has no checkpoint to fork from; name the run with --out")
        for path in [*checkpoints, source / "metrics.jsonl"]:
            (run.folder / path.name).write_bytes(path.read_bytes())


def train_in(run: Run, command: Command, experiment: Experiment) -> int:
    config = experiment.model_dump(mode="json")
    stored = run.read("config.json")
    if stored is not None and (changed := differences(stored["config"], config)):
        raise RunError(
            f"{run.folder} was started with another configuration ({'; '.join(changed)}); "
            "use the same flags, another --out, or --fork NEW to go on from it"
        )
    if (result := run.read("result.json")) is not None:
        report(run, result, "finished before")
        return 0

    from bsvi import __version__, experiments, runtime
    from bsvi.training import Result, train

    if stored is not None and stored["versions"]["bsvi"] != __version__:
        raise RunError(
            f"{run.folder} was started by bsvi {stored['versions']['bsvi']}, this is {__version__}; use --fork NEW"
        )
    started = runtime.start(runtime.Runtime(command.device, command.threads, command.compile))
    built = experiments.build(experiment, started.device, command.data_dir, progress=not command.quiet)
    data = experiments.describe_data(built.dataset)
    if stored is not None and stored["data"]["sha256"] != data["sha256"]:
        raise RunError(f"the data have changed since {run.folder} was started; use the same files, or --fork NEW")
    about = {
        "experiment": experiment.experiment,
        "method": experiment.method,
        "seed": experiment.seed,
        "k": experiment.svi.steps,
        "config": config,
        "versions": versions(),
        "git": revision(),
        "device": str(started.device),
        "threads": started.threads,
        "data": data,
    }
    if stored is None:
        run.write("config.json", about)
    from bsvi.watch import Screen

    title = f"{experiment.experiment} {experiment.method} seed {experiment.seed}"
    loggers = make_loggers(command, run, about)
    with Screen(title, experiment.steps, run, loggers, command.quiet) as screen:
        for note in started.notes:
            screen.say(note)
        runtime.compile_decoder(built.model.decoder, started.compile, screen.say)
        settings = built.training(time_limit=command.time_limit, save_every=command.save_every)
        result_: Result = train(
            built.model, built.objective, built.batches, built.valid, settings, run, screen, config=about
        )
        for line in run.warnings:
            screen.say(f"warning: {line}")
    if result_.finished:
        report(run, vars(result_), f"finished ({result_.stopped})")
        return 0
    print(f"saved at step {result_.steps} ({result_.stopped}); run the same command again to go on: {run.folder}")
    return SIGNAL_CODES.get(result_.stopped, 0)


def report(run: Run, result: dict[str, Any], how: str) -> None:
    bound = result["best_valid_bound"]
    best = f"best validation bound {bound:.3f} at step {result['best_step']}" if bound is not None else "no validation"
    print(f"{how}: {run.folder}: {result['steps']} steps, {best}")


def make_loggers(command: Command, run: Run, about: dict[str, Any]) -> list[Any]:
    """TensorBoard where it is installed, wandb where it is asked for."""
    from bsvi.watch import TensorBoard, Wandb

    if command.logger == "wandb":
        if importlib.util.find_spec("wandb") is None:
            raise RunError("--logger wandb needs the extra: pip install 'bsvi[wandb]'")
        return [Wandb(run.folder, about)]
    if command.logger == "tensorboard" and importlib.util.find_spec("tensorboard") is not None:
        newest = run.checkpoints()
        return [TensorBoard(run.folder, int(newest[0].stem[6:]) if newest else 0)]
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
