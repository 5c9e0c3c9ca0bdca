"""The commands in README and docs: their flags and files exist, and those of the README run."""

import contextlib
import functools
import io
import re
import shlex

import pytest

from bsvi.cli import VERBS, main
from tests.test_docs import PAGES, ROOT

TINY = ["--net.kind", "mlp", "--steps", "4", "--valid-every", "2"]
# What makes the README's commands quick; the command itself is run as printed.
QUICK = {
    "train": [*TINY, "--logger", "none", "--threads", "1"],
    "evaluate": ["--examples", "5", "--k", "5", "--threads", "1"],
    "gap": ["--examples", "5", "--k", "5", "--steps", "5", "--threads", "1"],
    "sweep": [*TINY, "--dry-run"],
    "report": [],
}


def commands(page):
    """(verb, words) of every `bsvi ...` that the page shows, without comments."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?: {4})?(?:\./run )?((?:torchrun .*-m )?bsvi .*)$", text, flags=re.MULTILINE)
    lines += re.findall(r"`(?:\./run )?(bsvi [^`]+)`", text)
    for line in lines:
        words = shlex.split(re.sub(r".*?\bbsvi ", "", line, count=1).replace("\n", " "), comments=True)
        if words and words[0] in VERBS:
            yield words[0], words[1:]


@functools.cache
def flags(verb, kind=""):
    """What the help of this verb names."""
    words = {"train": ["digits"], "data": [kind], "bench": [kind]}.get(verb, [])
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main([verb, *words, "--help"])
    also = flags("train") if verb in ("sweep", "plan") else {"--help", "--resume", "--config"}
    return also | set(re.findall(r"--[\w.-]+", printed.getvalue()))


@pytest.mark.parametrize("page", [p for p in PAGES if list(commands(p))], ids=lambda page: page.name)
def test_every_flag_on_the_page_exists(page):
    for verb, words in commands(page):
        for flag in [word.split("=")[0] for word in words if word.startswith("--")]:
            assert flag in flags(verb, words[0]), f"bsvi {verb} has no {flag}"


def test_every_script_on_the_pages_exists():
    for page in PAGES:
        for script in re.findall(
            r"(?:python|pytest)(?: -\w+)* ((?:benchmarks|examples|tests)/[\w/.]+)", page.read_text()
        ):
            assert (ROOT / script).exists(), f"{page.name}: {script}"


def test_the_readmes_commands_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = [(verb, words) for verb, words in commands(ROOT / "README.md") if words]
    assert [verb for verb, _ in found] == ["train", "evaluate", "gap", "sweep", "report"]
    for verb, words in found:
        assert main([verb, *words, *QUICK[verb]]) == 0, capsys.readouterr().err
    assert (tmp_path / "report/index.html").exists()
