"""A method is added from outside by one row: every verb then knows it."""

import json
import subprocess
import sys

import pytest

from bsvi.report.style import find_look
from bsvi.tables.methods import METHODS, choose_methods, find_label
from tests.drills.conftest import TINY, printed

ROW = printed("A method")


def test_a_method_of_a_stranger_trains_is_evaluated_planned_swept_and_reported(plugin, bsvi_command, tmp_path):
    plugin(ROW)
    bsvi_command("train digits --method bsvi-sir-2 --out run --quiet", TINY)
    bsvi_command("train digits --method vae --out vae --quiet", TINY)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["steps"] == 6 and result["decoder_calls"] == 6 * 7  # three proposals of two draws, and one for theta
    for run in ("run", "vae"):
        bsvi_command(f"evaluate {run} --k 4 --iwae 4 --examples 10 --threads 1 --device cpu --compile off --quiet")
    assert "bsvi-sir-2" in bsvi_command("plan digits --methods vae,bsvi-sir-2 --device A100")
    assert "bsvi-sir-2-seed0" in bsvi_command("sweep digits --methods beyond --dry-run", TINY)
    bsvi_command("report run vae -o page")
    page = (tmp_path / "page/index.html").read_text()
    assert METHODS["bsvi-sir-2"].label in page and "--bsvi-sir-2:#7f0055" in page
    scores = (tmp_path / "page/tables/digits-scores-test.md").read_text()
    assert f"Not one of the paper's methods: {METHODS['bsvi-sir-2'].label}." in scores


def test_all_are_the_papers_eight_whatever_is_added(plugin, bsvi_command):
    before = choose_methods("all")
    plugin(ROW)
    bsvi_command("report --help")
    assert choose_methods("all") == before and len(before) == 8 and "bsvi-sir-2" in choose_methods("beyond")
    assert choose_methods("all,bsvi-sir-2") == (*before, "bsvi-sir-2")


def test_without_its_module_a_run_of_a_method_is_one_line_and_drawn_as_any_other(plugin, bsvi_command, monkeypatch):
    plugin(ROW)
    bsvi_command("train digits --method bsvi-sir-2 --out run --quiet", TINY)
    monkeypatch.delenv("BSVI_PLUGINS")
    del METHODS["bsvi-sir-2"]
    said = bsvi_command("evaluate run --k 4", code=1)
    assert "unknown method 'bsvi-sir-2'" in said and len(said.splitlines()) == 1
    assert find_look("bsvi-sir-2") == find_look("anything-else") and find_label("bsvi-sir-2") == "bsvi-sir-2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name' (/"),
        ("1 / 0", "ZeroDivisionError: division by zero (/"),
        ("def", "SyntaxError"),
        ("from bsvi import METHODS\nMETHODS['vae'] = METHODS['iwae']", "changes the method 'vae', which is built in"),
        (
            "from bsvi import METHODS\nMETHODS['My Row'] = METHODS['iwae']",
            "small letters, digits and hyphens, got 'My Row'",
        ),
    ],
)
def test_a_wrong_module_is_one_line(plugin, bsvi_command, text, told):
    plugin(text)
    said = bsvi_command("data list", code=1)
    assert told in said and "BSVI_PLUGINS" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("word", ["no_such_module", "./no_such_file.py"])
def test_a_module_that_is_not_there_is_one_line(plugin, bsvi_command, monkeypatch, word):
    monkeypatch.setenv("BSVI_PLUGINS", word)
    said = bsvi_command("data list", code=1)
    assert f"BSVI_PLUGINS: {word} cannot be imported" in said and len(said.splitlines()) == 1


def test_help_shows_a_row_and_does_not_wait_for_torch(plugin):
    path = plugin(ROW)
    code = f"import os, sys; os.environ['BSVI_PLUGINS'] = {str(path)!r}; from bsvi.cli import main\n"
    code += "try: main(['train', 'digits', '--help'])\nfinally: assert 'torch' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "bsvi-sir-2" in said.stdout
