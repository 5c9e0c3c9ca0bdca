"""One attempt at a run: what is tried again and what is not, who waits for whom, and how a process is asked to stop."""

import fcntl
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bsvi.experiments.config import EXPERIMENTS
from bsvi.sweeps import attempt as module
from bsvi.sweeps import child
from bsvi.sweeps.attempt import Attempt, JobEnvironment, is_locked, wait_until_free
from bsvi.sweeps.jobs import Job
from tests.sweeps.cluster import wait_for

KILLED, LEFT = "import os; os.kill(os.getpid(), 9)", "pass"
ERROR = "import sys; sys.exit('first line\\nbsvi train: what was wrong')"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs an attempt whose processes do this Python code one after the other, and returns its outcome and their number."""
    folder, codes, count = tmp_path / "run", [], [0]

    def launch(where, words, program, environment):
        where.mkdir(exist_ok=True)
        code = codes[min(count[0], len(codes) - 1)].replace("HERE", repr(str(where)))
        count[0] += 1
        with open(where / "errors.txt", "wb") as errors:
            return subprocess.Popen([sys.executable, "-c", code], stderr=errors)

    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.chdir(tmp_path)
    job = Job(EXPERIMENTS["digits"], folder, ["train"], ["evaluate"], (folder / "scores.json").exists)

    def go(*given):
        codes[:] = given
        return Attempt(job, JobEnvironment(tmp_path, {}, patience=5.0)).run(), count[0]

    return go


def saves(step, then):
    return f"from pathlib import Path; (Path(HERE) / 'state-{step:08d}.ckpt').touch(); {then}"


def writes(name):
    return f"from pathlib import Path; (Path(HERE) / '{name}').touch()"


def test_what_is_killed_or_leaves_early_is_taken_up_again_as_long_as_it_gets_on(run, tmp_path):
    killed = [saves(step, KILLED) for step in (1, 2, 3, 4)]
    outcome = run(*killed, saves(5, LEFT), writes("result.json"), KILLED, writes("scores.json"))
    assert outcome == ("", 8)
    assert not (tmp_path / "run/errors.txt").exists()


@pytest.mark.parametrize(("code", "why"), [(KILLED, "killed by SIGKILL"), (LEFT, "left with exit code 0")])
def test_what_ends_again_and_again_with_nothing_new_saved_is_given_up(run, code, why):
    problem, count = run(saves(1, KILLED), code)
    assert problem.startswith(f"{why} while training, 3 times without anything new saved") and count == 4


def test_training_that_leaves_at_its_own_time_limit_is_not_taken_up_again(tmp_path, monkeypatch):
    calls = []

    def launch(where, words, program, environment):
        calls.append(words)
        return subprocess.Popen([sys.executable, "-c", "pass"])

    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.chdir(tmp_path)
    job = Job(EXPERIMENTS["digits"], tmp_path, ["train", "--time-limit", "5"], ["evaluate"], bool)
    attempt = Attempt(job, JobEnvironment(tmp_path, {}, patience=5.0))
    assert attempt.run() == "" and attempt.limited and len(calls) == 1


def test_an_error_of_its_own_is_not_tried_again(run):
    assert run(ERROR) == ("bsvi train: what was wrong", 1)


def test_an_attempt_waits_for_the_process_that_still_has_the_folder(tmp_path):
    assert not is_locked(tmp_path / "nowhere") and wait_until_free(tmp_path, 0.0)
    for name in ("lock", "evaluation-test-step5.jsonl"):
        with open(tmp_path / name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert is_locked(tmp_path) and not wait_until_free(tmp_path, 0.1)
            threading.Timer(1.0, fcntl.flock, (file, fcntl.LOCK_UN)).start()
            start = time.monotonic()
            assert wait_until_free(tmp_path, 30.0) and time.monotonic() - start > 0.5
    with open(tmp_path / "lock") as one, open(tmp_path / "lock"):
        fcntl.flock(one, fcntl.LOCK_SH)
        assert not is_locked(tmp_path)  # whoever only looks is not in the way


LISTENS = """
import signal, sys, time
def note(number, frame):
    signal.signal(number, signal.SIG_DFL)  # as training: a second one kills
    time.sleep(1.0)
    sys.exit(0)
signal.signal(signal.SIGUSR1, note)
open({ready!r}, "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("already", [0, 1], ids=["one signal", "one of SLURM before"])
def test_a_signal_that_was_there_already_is_not_sent_a_second_time(tmp_path, already):
    ready = tmp_path / "ready"
    process = subprocess.Popen([sys.executable, "-c", LISTENS.format(ready=str(ready))])
    job = Job(EXPERIMENTS["digits"], tmp_path, [], [], ready.exists, stage="training")
    attempt = Attempt(job, JobEnvironment(Path.cwd(), {}))
    attempt.pid = process.pid
    wait_for(ready.exists)
    for _ in range(already):
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
    attempt.end(signal.SIGUSR1, 30.0)
    assert process.wait() == 0


def test_what_does_not_leave_in_time_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    attempt = Attempt(
        Job(EXPERIMENTS["digits"], tmp_path, [], [], bool, stage="training"), JobEnvironment(Path.cwd(), {})
    )
    attempt.pid = process.pid
    attempt.end(signal.SIGTERM, 0.3)
    assert process.wait() == -signal.SIGKILL


def test_the_end_of_the_parent_is_one_sigterm(monkeypatch):
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        child.watch_parent(parent=-1, every=0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
