"""Every command in README and docs: run on embedded digits where that is cheap, else understood by its own parser."""

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import re
import runpy
import shutil
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from bsvi.cli import main
from bsvi.tables.plugins import TABLES, VARIABLE
from tests.shown_commands import fences, find_commands
from tests.test_docs import PAGES, ROOT, blocks

SMALL = {"--net.kind": "mlp", "--net.hidden": "16", "--net.latent": "4", "--valid-every": "2", "--batch-size": "20"}
SMALL |= {"--threads": "1", "--compile": "off", "--logger": "none"}
FEW = {"--examples": "4", "--k": "5", "--threads": "1", "--compile": "off", "--device": "cpu"}
# What costs time in a command that is run, and what it is here. All else is as printed.
COSTLY = {
    "train": SMALL | {"--steps": "4"},
    "evaluate": FEW | {"--iwae": "5"},
    "gap": FEW | {"--steps": "5"},
    "sample": {"--rows": "2", "--columns": "2"},
    "sweep": SMALL | {"--steps": "4", "--dry-run": ""},
    "plan": {"--methods": "vae", "--device": "A100"},
}
# The same for flags that a page gives; where it does not, they are left out.
COSTLY_WHERE_GIVEN = {"--ais": "1", "--passes": "200", "--certify": "2", "--phases": "vae:3,bsvi-sir:2"}
# What stands for experiments that need files or hours, and for names that the reader fills in.
STANDS_FOR = {r"\b(omniglot|svhn|fashion-mnist|mnist)(-mlp|-small)?\b|^(EXPERIMENT|NAME)$": "digits", "^METHOD$": "vae"}
NOT_OF_DIGITS = {"--data.no-extra"}  # flags of other data sets
# Commands that are not run: their own parser must take them. What matches, and why.
ONLY_PARSED = {
    r"--data-dir DIR": "needs real images",
    r"HOST:": "needs a cluster",
    r"^torchrun|--processes 4": "several processes: tests/training/test_distributed_command.py, tests/evaluation/test_sharded.py",
    r"--watch": "goes on until Ctrl-C: tests/report/test_make.py",
    r"python benchmarks/(cost|claims|scaling|training|update|estimators|flows|effort)|bsvi.bench": "minutes of measuring",
    r"python benchmarks/publish": "makes all figures: tests/test_results.py runs it",
    r"python benchmarks/(compare|reproduction)": "reads results/, which tests/test_results.py does",
    r"scvi_estimators": "needs scvi-tools",
    r"^pip|^\./run( |$)": "sets up an environment",
    r"--iwae 500 --ais": "seconds of AIS: the other command with --ais is run",
    r"pytest": "is a test itself",
    r"^mkdir|^tar": "belongs to the command after it: tests/test_results.py opens these archives",
}

COMMANDS = {command: page for page in reversed(PAGES) for command in find_commands(page)}
COMPLETE = [command for command in COMMANDS if not command.mentioned]
RUN = [c for c in COMPLETE if not any(re.search(pattern, " ".join(c.words)) for pattern in ONLY_PARSED)]


def name(command):
    return " ".join(command.words)


def stand_in(words):
    """The words with the embedded digits for other data."""
    for pattern, ours in STANDS_FOR.items():
        words = [re.sub(pattern, ours, word) if not word.startswith("-") else word for word in words]
    return [word for word in words if word not in NOT_OF_DIGITS]


class Understood(Exception):
    """The words were taken; nothing is done."""


@functools.cache
def flags(verb, kind=""):
    """What the help of this verb names."""
    words = {"train": ["digits"], "data": [kind], "bench": [kind]}.get(verb, [])
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([verb, *words, "--help"])
    also = flags("train") if verb in ("sweep", "plan") else {"--help", "--resume", "--config"}
    return also | set(re.findall(r"--[\w.-]+", printed.getvalue()))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with what the pages suppose: a small run by the names they use, images, settings, a module with rows."""
    folder = tmp_path_factory.mktemp("reader")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for method in ("bsvi-sir", "vae"):
            assert main(make_cheap(["train", "digits", "--method", method, "--seed", "0"])) == 0
        for copy in ("RUN", "RUNS/digits/bsvi-sir-seed0"):
            shutil.copytree("runs/digits/bsvi-sir-seed0", copy)
        for place in ("PATH", "my-images"):
            Path(place).mkdir()
            for number, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (40, 6, 6), np.uint8)):
                Image.fromarray(pixels).save(f"{place}/{number:02}.png")
        Path("my_rows.py").write_text("\n".join(blocks(ROOT / "docs/howto.md")))
        Path("mine.toml").write_text(
            next(b for kind, b in fences((ROOT / "docs/training.md").read_text()) if kind == "toml")
        )
    return folder


def make_cheap(words):
    """The words of bsvi with what costs time replaced."""
    verb, made = words[0], list(words)
    replaced = COSTLY.get(verb, {}) | {flag: value for flag, value in COSTLY_WHERE_GIVEN.items() if flag in words}
    for flag, value in replaced.items():
        counted = "--phases" in words or "--equal-time" in words  # then the number of steps is not asked for
        if (flag == "--steps" and counted) or (flag == "--iwae" and flag in words):
            continue
        if flag in made:
            at = made.index(flag)
            made[at : at + 2 if value else at + 1] = []
        made += [flag, value] if value else [flag]
    return made


@pytest.fixture
def reader(prepared, tmp_path, monkeypatch):
    """``reader(command)``: where the command's reader is, with the page's own rows in the tables."""

    def go(command):
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        if command.verb == "train" and "--resume" not in command.words:
            shutil.rmtree("runs")  # a run begins
        if COMMANDS[command].stem == "howto":
            monkeypatch.setenv(VARIABLE, "./my_rows.py")
        return tmp_path

    with contextlib.ExitStack() as stack:
        for table in TABLES:
            stack.enter_context(mock.patch.dict(table))
        yield go
    sys.modules.pop("my_rows", None)


@pytest.mark.parametrize("command", RUN, ids=name)
def test_the_command_runs(command, reader, capsys):
    folder = reader(command)
    before = set(folder.rglob("*"))
    if command.words[0] == "bsvi":
        words = list(command.words[1:])
        words = words if "--help" in words else make_cheap(stand_in(words))
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
        assert not code, capsys.readouterr().err
    else:
        run_script(*command.words[1:])
    printed = capsys.readouterr().out
    assert printed or set(folder.rglob("*")) - before  # it says or leaves something


@pytest.mark.parametrize("command", [c for c in COMPLETE if c not in RUN], ids=name)
def test_the_command_is_understood(command, reader, capsys):
    reader(command)
    program, *words = command.words
    words = [{"EXPERIMENT": "digits", "NAME": "digits", "METHOD": "vae"}.get(word, word) for word in words]
    if program == "torchrun":
        run = import_module("torch.distributed.run").get_args_parser().parse_args(words)
        assert run.module and run.training_script == "bsvi"
        program, words = "bsvi", run.training_script_args
    if program == "bsvi":
        assert understand(words), capsys.readouterr().err
    elif program.endswith("python") and words[0] == "-m":
        assert words[1] == "pytest" or understand(["bench", *words[2:]]), capsys.readouterr().err
    elif program.endswith("python"):
        with stop_after_parsing(), pytest.raises(Understood):
            run_script(*words)
    elif program == "./run" and words and words[0] != "COMMAND":
        case = re.findall(r"^  ([\w-]+)\)", (ROOT / "run").read_text(), flags=re.MULTILINE)
        assert words[0] in case or shutil.which(words[0]), f"./run has no {words[0]}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"\[(\w+)\]", " ".join(words))) <= set(extras)
    for path in re.findall(r"(?:tests|benchmarks|examples|results|docs)/[\w/.-]+|\b[\w-]+\.txt", " ".join(words)):
        assert (ROOT / path).exists(), f"{COMMANDS[command].name}: there is no {path}"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.mentioned], ids=name)
def test_every_flag_that_is_mentioned_exists(command):
    verb, *words = command.words[command.words.index("bsvi") + 1 :]
    for flag in [word.split("=")[0] for word in words if word.startswith("--")]:
        assert flag in flags(verb, words[0]), f"{COMMANDS[command].name}: bsvi {verb} has no {flag}"


def understand(words):
    """Whether the verb's own parser takes these words, up to where its work would begin."""
    with stop_after_parsing(), contextlib.ExitStack() as stack:
        if words[0] == "train" and "--help" not in words:
            import_module("bsvi.commands.train_flags").parse(words[1:])
            return True
        for home in ("sweep.available_cores", "plan.build_plan"):
            stack.enter_context(mock.patch(f"bsvi.commands.{home}", side_effect=Understood))
        try:
            return main(words) == 0
        except Understood:
            return True
        except SystemExit as left:
            return not left.code


@contextlib.contextmanager
def stop_after_parsing():
    """Understood is raised where a parser has taken all its words."""
    parse = argparse.ArgumentParser.parse_args

    def stop(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise Understood

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        yield


def run_script(script, *words):
    """Run a script of the repository here; libraries that are not installed are stood in for."""
    wanted = re.findall(r"^import (\w+)", (ROOT / script).read_text(), flags=re.MULTILINE)
    missing = {name: mock.MagicMock() for name in wanted if importlib.util.find_spec(name) is None}
    sys.modules.update(missing)
    try:
        with mock.patch.object(sys, "argv", [script, *words]):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:  # these alone: a module that is imported a second time has other classes than the first
        for module in missing:
            del sys.modules[module]


def test_every_reason_not_to_run_a_command_is_needed():
    for pattern in ONLY_PARSED:
        assert any(re.search(pattern, name(command)) for command in COMPLETE), pattern
    assert len(RUN) > 25


@pytest.mark.parametrize(
    "wrong", ["evaluate RUN --estimtor ais", "train digits --optim.rate 1", "sweep digits --seeds x"]
)
def test_a_renamed_flag_or_value_would_be_found(wrong, prepared, monkeypatch, capsys):
    monkeypatch.chdir(prepared)
    with contextlib.suppress(SystemExit):
        assert not understand(wrong.split())


def test_blocks_are_code_commands_output_or_files_and_the_files_are_like_real_ones(prepared, monkeypatch, capsys):
    monkeypatch.chdir(prepared)
    shutil.copytree("RUN", "evaluated", dirs_exist_ok=True)
    assert main(make_cheap(["evaluate", "evaluated"])) == 0
    real = {
        **json.loads(Path("evaluated/config.json").read_text()),
        **json.loads(Path("evaluated/scores.json").read_text()),
    }
    for page in PAGES:
        text = page.read_text()
        for kind, block in fences(text):
            assert kind in ("python", "text", "sh", "toml", "json", "bibtex") or kind.startswith("{"), (
                f"{page.name}: {kind}"
            )
            if kind == "json":
                assert not missing(json.loads(block), real), page.name
        answers = len(re.findall(r"^```text", text, flags=re.MULTILINE))
        assert answers == len(re.findall(r"^```python\n(?:(?!^```).*\n)*```\n\n```text", text, flags=re.MULTILINE)), (
            page.name
        )


def missing(shown, real):
    """Names that a page shows and a real file has not."""
    if not isinstance(shown, dict) or not shown:
        return []
    return [name for name in shown if name not in real and not name.isdigit()] + [
        f"{name}.{inner}" for name in shown if name in real for inner in missing(shown[name], real[name])
    ]


def test_the_readmes_commands_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = [list(command.words[1:]) for command in find_commands(ROOT / "README.md") if command.verb]
    assert [verb for verb, *_ in found] == ["train", "evaluate", "gap", "sweep", "report"]
    for words in found:
        assert main(make_cheap(words)) == 0, capsys.readouterr().err
    assert (tmp_path / "report/index.html").exists()
