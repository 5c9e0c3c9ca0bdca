"""The words of ``bsvi train``: every field of an experiment is a flag, a TOML file gives the same fields."""

import contextlib
import io
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, Field, ValidationError
from tyro.conf import arg

from bsvi.experiments.changes import describe_first_problem, read_toml, update_experiment
from bsvi.experiments.config import EXPERIMENTS, Data, Experiment
from bsvi.experiments.own_images import choose
from bsvi.runs.folder import Run, RunError
from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.words import suggest


class Command(Experiment):
    """Train one method on one experiment. Run the same command again to resume; a finished run prints its result."""

    out: Path | None = Field(None, description="run folder (default runs/EXPERIMENT/METHOD-seedN)")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda where there is one")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: all cores")
    compile: Literal["auto", "on", "off"] = Field("auto", description="compile the decoder; auto: large ones")
    data_dir: Path | None = Field(None, description="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    time_limit: float = Field(float("inf"), gt=0, description="seconds of training until the run is saved and left")
    save_every: float = Field(120.0, gt=0, description="seconds between checkpoints")
    logger: Literal["tensorboard", "wandb", "none"] = Field("tensorboard", description="beside metrics.jsonl")
    fork: Path | None = Field(None, description="go on from this run in a new folder, with a changed configuration")
    from_: Annotated[Path | None, arg(name="from")] = Field(
        None, description="begin at the best weights of this run, of equal data and networks"
    )
    quiet: bool = Field(False, description="print nothing but the result")


def strip_command(command: Command) -> Experiment:
    """The experiment of a command, without what is of this machine and moment."""
    return Experiment.model_validate({name: getattr(command, name) for name in Experiment.model_fields})


def parse(words: list[str], verb: str = "train") -> Command:
    """The command from its words: EXPERIMENT, the PATH of images or --resume RUN first, then flags; --config sits between.

    Wrong words end the program with one line, which names the verb that was typed, and exit code 2.
    """
    refuse = partial(refuse_words, verb)
    words = [
        part for word in words for part in (word.split("=", 1) if re.match(r"--(resume|config)=", word) else [word])
    ]
    if any(not word or re.fullmatch(r"--[^=]+=", word) for word in words):
        refuse("a word is empty; is a variable of the shell not set?")
    if words and words[0] == "--resume":
        if len(words) < 2:
            refuse("--resume needs a run folder: bsvi train --resume runs/digits/bsvi-sir-seed0")
        folder = Path(words[1])
        stored = Run(folder).read("config.json", "config")
        if stored is None:
            raise RunError(f"{folder} holds no config.json; name a run folder, or start one with bsvi train EXPERIMENT")
        base, words = update_experiment(EXPERIMENTS["digits"], stored["config"], str(folder / "config.json")), words[2:]
        base = with_absolute_path(base, stored.get("data"))
        return parse_flags(base, ["--out", str(folder), *words], "bsvi train --resume RUN", refuse)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        refuse(
            f"name an experiment first: bsvi {verb} EXPERIMENT; there are {', '.join(EXPERIMENTS)}, or a PATH of images"
        )
    name, *rest = words
    if name in ("-h", "--help"):
        print("usage: bsvi train EXPERIMENT [flags] | PATH [flags] | --resume RUN\n")
        print(f"experiments: {', '.join(EXPERIMENTS)}")
        print("PATH: your own images (a folder, .npy, .npz or IDX); networks are chosen by their size and kind\n")
        print("bsvi train digits --help lists the flags with their defaults and reasons.")
        raise SystemExit(0)
    config: Path | None = None
    if "--config" in rest:
        at = rest.index("--config")
        if at + 1 == len(rest):
            refuse("--config needs a TOML file")
        config = Path(rest[at + 1])
        rest = rest[:at] + rest[at + 2 :]

    def command(base: Experiment) -> Command:
        return parse_flags(base if config is None else read_toml(config, base), rest, f"bsvi train {name}", refuse)

    if name in EXPERIMENTS:
        return command(EXPERIMENTS[name])
    if not Path(name).exists():
        if "/" in name or Path(name).suffix:
            refuse(f"{name} is no file or folder; name your own images, or one of {', '.join(EXPERIMENTS)}")
        hint = suggest(name, EXPERIMENTS)
        refuse(f"unknown experiment {name!r}; {hint}there are {', '.join(EXPERIMENTS)}, or the path of your own images")
    asked = command(Experiment(data=Data(name=name)))  # first, for the size and binarisation that it asks for
    if asked.data.name != name:
        refuse(f"--data.name {asked.data.name} is another set of images than {name}; name one of them")
    base, line = choose(Path(name), asked.data)
    if verb == "train" and not asked.quiet:
        print(line, flush=True)
    return command(base)


def with_absolute_path(base: Experiment, data: Any) -> Experiment:
    """The experiment with its own images named by their absolute path, so that a run goes on from any folder."""
    path = data.get("path") if isinstance(data, dict) else None
    if not isinstance(path, str) or base.data.name in DATA_SETS or not Path(path).exists():
        return base
    return base.model_copy(update={"data": base.data.model_copy(update={"name": path})})


def refuse_words(verb: str, line: str) -> NoReturn:
    """Wrong words: one line, exit code 2."""
    print(f"bsvi {verb}: {line}", file=sys.stderr)
    raise SystemExit(2)


def parse_flags(base: Experiment, words: list[str], program: str, refuse: Callable[[str], NoReturn]) -> Command:
    """``base`` with the fields that flags replace."""
    import tyro

    known = {*list_flags(Command), "--help"}
    for word in words:
        flag = word.split("=", 1)[0].replace("_", "-")
        if re.match(r"--[a-z]", flag) and flag not in known:
            refuse(f"unknown flag {flag}; {suggest(flag, sorted(known))}{program} --help lists them")
    default = Command.model_construct(**{name: getattr(base, name) for name in Experiment.model_fields})
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command = tyro.cli(Command, args=words, default=default, prog=program, config=(tyro.conf.AvoidSubcommands,))
    except ValidationError as error:
        refuse(f"{describe_first_problem(error)}; {program} --help says what fits")
    except SystemExit as left:
        if not left.code:
            raise
        refuse(f"{unframe(said.getvalue())}; {program} --help says what fits")
    if command.phases and {word.split("=", 1)[0] for word in words} & {"--method", "--steps"}:
        refuse("phases name the methods and their updates; leave --method and --steps out")
    return command


def list_flags(settings: type[BaseModel], prefix: str = "") -> list[str]:
    """The flags of all fields, as '--svi.max-grad-norm'; '--no-quiet' for what is on or off."""
    found = []
    for name, field in settings.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += list_flags(kind, f"{prefix}{name}.")
        else:
            word = name.rstrip("_").replace("_", "-")  # from_ is --from
            found += [f"--{prefix}{word}"] + ([f"--{prefix}no-{word}"] if kind is bool else [])
    return found


def unframe(box: str) -> str:
    """What the framed complaint of the parser says, without frame and links."""
    inside = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    parts = re.split(r"\n[─-]{4,}\n", "\n".join(inside))
    text = " ".join(parts[0 if "│" in box else min(1, len(parts) - 1)].split())  # without a frame the title comes first
    text = re.sub(r"\s*For further information visit \S+", "", text)
    text = re.sub(r"Error parsing (\S+): \d+ validation errors? for \w+", r"\1:", text)
    text = re.sub(r"\[type=\w+, input_value=(.*?), input_type=\w+\]", r"(got \1)", text)
    text = re.sub(r"^Command: |\bValue error, ", "", text.strip())
    return text.rstrip(".") or "these words are not understood"
