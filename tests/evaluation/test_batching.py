"""Batches of the commands end within seconds, show images done and time left, and no number depends on them."""

import io
import json
import re
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from bsvi import cli
from bsvi.commands.bar import Bar
from bsvi.evaluation import ais as annealing
from bsvi.experiments import batching
from bsvi.experiments.config import EXPERIMENTS
from tests.evaluation.test_side_by_side import COMMON

SIDE = {"digits": 8, "omniglot": 28, "svhn": 32, "fashion": 28, "mnist": 28}


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def lines(run, what):
    """How many images each finished batch had, by the lines of the store."""
    (store,) = run.glob(f"{what}-*.jsonl")
    return [len(json.loads(line[9:])["ids"]) for line in store.read_text().splitlines()[1:]]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_papers_evaluation_of_500_images_is_many_batches(name):
    e = EXPERIMENTS[name]
    side = SIDE[name.split("-")[0]]
    for passes in (
        batching.count_evaluate_passes(500, 2500),
        batching.count_gap_passes(500, 500),
        batching.count_ais_passes(),
    ):
        size = batching.choose_batch_size(e.net, (side, side), passes)
        assert 1 <= size <= 250
        assert batching.choose_batch_size(e.net, (side, side), passes, threads=2) <= 2 * size
        assert size <= batching.choose_batch_size(e.net, (side, side), passes // 10) <= batching.MOST
        assert size <= batching.choose_batch_size(e.net, (side, side), passes, device="cuda") <= batching.MOST


def test_the_commands_choose_the_batch_by_what_an_image_costs(run, monkeypatch):
    monkeypatch.setattr(annealing, "ais", partial(annealing.ais, chains=2, temperatures=5, leapfrog=2))
    monkeypatch.setattr(batching, "SECONDS", 1e-4)
    words = [str(run), "--k", "3", "--examples", "7", *COMMON]
    assert cli.main(["evaluate", *words, "--iwae", "--ais", "3"]) == 0
    assert lines(run, "evaluation") == [2, 2, 2, 1] and lines(run, "ais") == [1, 1, 1]
    assert cli.main(["gap", *words, "--steps", "2"]) == 0
    assert len(lines(run, "gap-test")) > 3


def test_no_number_depends_on_the_batch(run, tmp_path, monkeypatch):
    found = []
    for seconds in (1e-4, 1.0):
        folder = shutil.copytree(run, tmp_path / str(seconds))
        monkeypatch.setattr(batching, "SECONDS", seconds)
        words = [str(folder), "--k", "6", "--examples", "9", *COMMON]
        assert (
            cli.main(["evaluate", *words, "--iwae", "6", "12"]) == 0 and cli.main(["gap", *words, "--steps", "3"]) == 0
        )
        with np.load(folder / "scores-test.npz") as arrays:
            columns = {name: arrays[name] for name in arrays.files}
        gap = json.loads((folder / "gap.json").read_text())
        found.append((columns, gap, len(lines(folder, "evaluation")), len(lines(folder, "gap-test"))))
    (few, few_gap, *many), (whole, whole_gap, *one) = found
    assert min(many) > 1 and one == [1, 1]
    for name in whole:
        np.testing.assert_allclose(few[name], whole[name], rtol=0, atol=1e-4, err_msg=name)
    for name in ("log_likelihood", "elbo", "amortization_gap"):
        assert few_gap[name]["mean"] == pytest.approx(whole_gap[name]["mean"], abs=1e-4)


def test_the_same_command_gives_the_same_bits(run, tmp_path):
    tables = []
    for name in ("one", "two"):
        folder = shutil.copytree(run, tmp_path / name)
        assert cli.main(["evaluate", str(folder), "--k", "5", "--examples", "9", *COMMON]) == 0
        with np.load(folder / "scores-test.npz") as arrays:
            tables.append({each: arrays[each] for each in arrays.files})
    for each in tables[0]:
        np.testing.assert_array_equal(tables[0][each], tables[1][each])


def test_progress_shows_images_done_and_time_left(capsys):
    now = [0.0]
    with Bar("run test", 100, quiet=False, clock=lambda: now[0]) as bar:
        bar.live = False
        bar.update(50)  # these were in the store: no time was spent on them
        assert capsys.readouterr().out == ""
        for done in (60, 70, 80):
            for _ in range(12):  # several processes are asked every now and then
                bar.update(done - 10)
                now[0] += 1.0
            bar.update(done)
            left = f"about {1.2 * (100 - done):.0f} s left"
            assert capsys.readouterr().out == f"run test: {done}/100 images, {left}\n"
        now[0] += 1.0
        bar.update(81)  # not every batch is told
        assert capsys.readouterr().out == ""


def test_the_bar_of_a_terminal_shows_images_done_and_time_left(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("bsvi.commands.bar.open_console", lambda: console)
    now = [0.0]
    with Bar("run test", 400, quiet=False, clock=lambda: now[0]) as bar:
        now[0] = 60.0
        bar.update(100)
    assert "100/400 images about 3 min left" in re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


def test_shares_take_the_batch_of_the_one_who_starts_them(run, monkeypatch):
    started = []

    def start(words, *more):
        started.append(words)
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("bsvi.commands.evaluate_shares.start_share", start)
    assert cli.main(["evaluate", str(run), "--k", "3", "--examples", "7", "--processes", "2", *COMMON]) == 0
    assert len(started) == 2 and len({words[words.index("--batch-size") + 1] for words in started}) == 1
