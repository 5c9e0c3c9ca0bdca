"""A stranger's module: the code that docs/howto.md prints, in a file outside the package, named by BSVI_PLUGINS."""

import contextlib
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from bsvi.cli import main
from bsvi.tables.plugins import TABLES, VARIABLE

HOWTO = Path(__file__).parents[2] / "docs/howto.md"
TINY = """--net.kind mlp --net.hidden 16 --net.latent 4 --svi.steps 2 --batch-size 20 --steps 6 --valid-every 3 --log-every 2
--threads 1 --device cpu --compile off --logger none"""


def printed(section):
    """The first block of code in a section of the page."""
    text = HOWTO.read_text().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return re.search(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """``plugin(text)``: the text as a module of a stranger; afterwards the tables are as they were."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="my_rows"):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        monkeypatch.setenv(VARIABLE, str(path))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return path

    with contextlib.ExitStack() as stack:
        for table in TABLES:
            stack.enter_context(mock.patch.dict(table))
        yield write
    sys.modules.pop("my_rows", None)


@pytest.fixture
def bsvi_command(capsys):
    """``bsvi_command("train", "digits")``: what the command prints; it must succeed unless another code is named."""

    def run(*words, code=0):
        capsys.readouterr()
        try:
            got = main([str(part) for word in words for part in (word.split() if isinstance(word, str) else [word])])
        except SystemExit as left:
            got = left.code
        said = capsys.readouterr()
        assert got == code, said.err
        return said.out if code == 0 else said.err

    return run
