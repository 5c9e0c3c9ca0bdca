"""What a page that is being watched says of the sweep: runs done of all, time left; and nothing once the sweep has ended."""

import json
import time

import pytest

from bsvi.commands.sweep import find_progress, parse
from bsvi.commands.sweep_display import Display
from bsvi.commands.sweep_plan import make_plan
from bsvi.report import make_report
from bsvi.report.progress import read_progress
from tests.report.made_runs import make_run, make_runs
from tests.sweeps.test_display import trains


def tell(folder, **about):
    folder.mkdir(parents=True, exist_ok=True)
    told = {"runs": 8, "done": 3, "failed": 0, "stopped": 0, "seconds_left": 200.0, "written": time.time()}
    (folder / "sweep.json").write_text(json.dumps(told | about))


def test_a_sweep_tells_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, rest = parse(["digits", "--seeds", "0:4"])
    plan = make_plan(arguments, rest)
    trains(plan[0], 250, 50.0)  # 0.2 s a step, 1000 steps, 32 runs, two at once
    plan[1].stage = "done"
    with Display(plan, 2, find_progress(arguments)) as show:
        show(plan)
        found = read_progress([tmp_path])
    assert (found.done, found.runs, found.failed) == (1, 32, 0)
    assert found.seconds_left == pytest.approx((150 + 30 * 200) / 2, abs=60)
    assert "1 of 32 runs is done, about 51 min left" in found.describe()


def test_a_method_that_was_timed_is_expected_to_take_as_long_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = make_plan(*parse(["digits", "--methods", "vae,bsvi", "--seeds", "0:2"]))
    for job, seconds in zip(plan[:2], (100.0, 900.0), strict=True):
        trains(job, 1000, seconds)
        (job.folder / "result.json").write_text("{}")
        job.stage = "done"
    plan[2].stage = "done"  # the other vae
    display = Display(plan, 1)
    for job in plan[:2]:
        display.seen[job.name].update(job)
    assert display.estimate_left().seconds == pytest.approx(900.0)  # not the mean of both, 500


@pytest.mark.parametrize(
    "about",
    [{"done": 8}, {"done": 7, "failed": 1}, {"written": 0}, {"runs": "8"}, {"written": 1e11}],
    ids=str,
)
def test_a_sweep_that_has_ended_or_says_nothing_sensible_is_not_shown(tmp_path, about):
    tell(tmp_path / "digits", **about)
    assert read_progress([tmp_path]) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '{"runs": []}'])
def test_a_damaged_file_is_no_reason_to_stop(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    assert read_progress([tmp_path]) is None


def test_sweeps_at_the_same_time_count_together_and_the_longest_decides(tmp_path):
    now = time.time()
    tell(tmp_path / "a", written=now - 50)
    tell(tmp_path / "b", seconds_left=90.0, failed=1, written=now)
    found = read_progress([tmp_path, tmp_path / "a"], now)
    assert (found.done, found.runs, found.failed) == (6, 16, 1) and found.seconds_left == pytest.approx(150.0, abs=2)
    tell(tmp_path / "b", seconds_left=None)
    assert "not known yet" in read_progress([tmp_path]).describe()


def test_a_watched_page_says_how_many_runs_are_done_and_the_last_page_does_not(tmp_path):
    make_runs(tmp_path / "runs", ("vae", "svi"), (0,), steps=100)
    make_run(tmp_path / "runs", "bsvi", 0, steps=100, ended=False)
    tell(tmp_path / "runs/omniglot-small", written=time.time() + 100)  # however slow this machine is
    pages = []

    def stop(seconds):
        pages.append((tmp_path / "out/index.html").read_text())
        raise KeyboardInterrupt

    last = make_report([tmp_path / "runs"], tmp_path / "out", watch=True, wait=stop).read_text()
    assert "3 of 8 runs are done, about 3.3 min left" in pages[0] and '<progress max="8" value="3"' in pages[0]
    assert "<progress" not in last and "runs are done" not in last
