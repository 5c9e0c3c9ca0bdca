"""``bsvi train`` against signals, kills, full disks, NaN and other processes: a small sample of the table of faults.

The whole table is in test_faults_*.py, behind ``./run test-faults``.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from bsvi.runs.folder import Run
from tests.pace import slowness
from tests.training import faults
from tests.training.children import METHODS, Child, ending, train_through, train_words, whole_checkpoints
from tests.training.commands import failing, slow_after_meeting
from tests.training.test_config import time_of_children


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 0)])
def test_a_signal_saves_and_has_its_exit_code_and_the_run_resumes(tmp_path, reference, name, code):
    folder = tmp_path / "run"
    child = Child(
        train_words(folder, "--method", "bsvi-sir-pi", "--save-every", "1000"), folder, faults.slow_steps, 0.02
    )
    child.wait_until(lambda: (folder / "metrics.jsonl").exists())
    child.signal(getattr(signal, name))
    assert child.wait() == code
    assert re.search(rf"saved at step \d+ \({name}\); run the same command again", child.said())
    assert len(Run(folder).checkpoints()) == 1 and not list(folder.glob(".*"))
    shutil.move(folder, tmp_path / "moved")
    child = Child(["train", "--resume", str(tmp_path / "moved"), "--threads", "1", "--logger", "none"], folder)
    assert child.wait() == 0, child.said()
    assert ending(tmp_path / "moved") == reference()


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 0)])
def test_a_signal_at_start_up_has_its_exit_code_too(tmp_path, name, code):
    child = Child(train_words(tmp_path / "run"), tmp_path / "run", stall_in_start_up)
    child.wait_until(lambda: "stalled" in child.said())
    child.signal(getattr(signal, name))
    assert child.wait() == code, child.said()
    assert f"stopped by {name} before the first step; run the same command again" in child.said()
    assert not (tmp_path / "run").exists()


def stall_in_start_up():
    import bsvi.system.runtime

    bsvi.system.runtime.start = lambda runtime: (print("stalled", flush=True), time.sleep(60))


def test_a_second_signal_ends_at_once_without_damage(tmp_path, reference):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.slow_steps, 0.05, 0.001)
    child.wait_until(lambda: len(Run(folder).checkpoints()) == 2)
    child.process.terminate()
    time.sleep(0.02)  # longer than an echo
    start = time.monotonic()
    child.signal(signal.SIGINT)
    assert child.wait() in (-signal.SIGINT, 143)  # 143 where the step was over in between
    assert time.monotonic() - start < 5  # a step and its end would take as long as the whole run
    assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", "bsvi-sir-pi")
    assert ending(folder) == reference()


@pytest.mark.parametrize("method", METHODS)
def test_kills_at_any_time_change_nothing_in_the_end(tmp_path, reference, method):
    expected, folder = reference(method), tmp_path / "run"
    for seconds in (0.15, 0.25):
        Child(train_words(folder, "--method", method), folder).kill_after(seconds)
        assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", method)
    assert ending(folder) == expected


def test_kills_inside_a_save_leave_the_newest_checkpoint_whole(tmp_path, reference):
    folder = tmp_path / "run"
    for last, moment in ((9, "within"), (23, "before"), (31, "after"), (40, "within"), (52, "before"), (63, "after")):
        child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.kill_in_save, last, moment)
        assert child.wait() == -signal.SIGKILL
        assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", "bsvi-sir-pi")
    assert ending(folder) == reference()


@pytest.mark.parametrize("limit", [0, 1500, 20_000])
def test_a_full_disk_stops_nothing(tmp_path, reference, limit):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.full_disk, 3, 6, limit)
    assert child.wait() == 0, child.said()
    seen = json.loads(child.said().splitlines()[0])
    assert seen == {"failed": 3, "intact": 3, "temporaries": 0}
    assert ending(folder) == reference()


@pytest.mark.parametrize("site", ["data", "decoder", "gradient", "pi"])
def test_nan_stops_with_exit_code_3_step_tensor_and_ids(tmp_path, site):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-pi"), folder, faults.not_finite, site, math.nan, 9)
    assert child.wait() == 3
    (line,) = child.said().strip().splitlines()
    tensor = {"data": "x holds NaN", "decoder": "decoder's output", "gradient": "gradient of decoder", "pi": "logits"}[
        site
    ]
    assert line.startswith("bsvi train: step 9: ") and tensor in line and re.search(r"batch ids \d+", line), line
    assert line.removeprefix("bsvi train: ") in (folder / "log.txt").read_text()
    assert max(whole_checkpoints(folder)[0]) < 9 and not (folder / "result.json").exists()


def test_a_second_process_is_refused_within_a_second_with_pid_and_host(tmp_path):
    folder = tmp_path / "run"
    child = Child(train_words(folder), folder, faults.slow_steps, 0.2)
    child.wait_until(lambda: (folder / "config.json").exists())
    seconds = []
    for _ in range(3):
        start = time_of_children()
        line = failing(train_words(folder))
        seconds.append(time_of_children() - start)
    assert f"in use by process {child.process.pid} on {os.uname().nodename}; wait for it, stop it" in line
    assert min(seconds) < slowness(), seconds
    assert child.kill_after(0)
    assert Child(train_words(folder, "--time-limit", "0.01"), folder).wait() == 0  # the dead owner's lock is taken over


def test_of_many_simultaneous_starts_one_becomes_the_owner(tmp_path):
    folder = tmp_path / "run"
    at = time.time() + 1.0
    together = [
        Child(train_words(folder, "--time-limit", "3"), tmp_path / str(i), slow_after_meeting, at) for i in range(6)
    ]
    codes = [child.wait() for child in together]
    owner = codes.index(0)
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    for i, child in enumerate(together):
        assert i == owner or f"in use by process {together[owner].process.pid} on" in child.said(), child.said()


def test_a_reader_that_goes_away_does_not_stop_the_run(tmp_path):
    words = [word for word in train_words(tmp_path / "run") if word != "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "bsvi", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=100) == 0
    assert (tmp_path / "run" / "result.json").exists()
