"""Runs of a sweep are forks of a process that has imported torch already: processes like any other, and the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bsvi.experiments.config import EXPERIMENTS
from bsvi.sweeps.forks import LOST, ForkPool
from bsvi.sweeps.jobs import Job, run_jobs
from tests.test_cli import TINY

LONG = ["train", "digits", *TINY, "--steps", "1000000", "--quiet"]


@pytest.fixture
def pool():
    pool = ForkPool()
    yield pool
    pool.close()


def wait_for(true, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "this never came"
        time.sleep(0.05)


def start_long(pool, folder):
    """A run that would train for days, as far as its first line of metrics."""
    fork = pool.start(folder, [*LONG, "--out", str(folder)])
    wait_for(lambda: (folder / "metrics.jsonl").exists() or fork.poll() is not None)
    assert fork.poll() is None
    return fork


def test_one_starter_does_one_command_after_the_other_and_tells_their_exit_codes(pool, tmp_path):
    codes = [pool.start(tmp_path / "run", words).wait() for words in (["--version"], ["train", "nowhere"], ["data"])]
    assert codes == [0, 2, 2] and len(pool.starters) == 1
    assert "bsvi data" in (tmp_path / "run" / "errors.txt").read_text()  # of the last one alone
    assert "nowhere" not in (tmp_path / "run" / "errors.txt").read_text()


def test_a_fork_trains_to_the_same_bits_as_a_command_and_sees_this_folder_and_these_variables(
    pool, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "bsvi", "train", "digits", *TINY, "--out", "command"], check=True)
    monkeypatch.setenv("BSVI_DATA_DIR", str(tmp_path / "moved"))
    assert pool.start(tmp_path / "fork", ["train", "digits", *TINY, "--out", "fork"]).wait() == 0
    names = [path.name for path in (tmp_path / "command").glob("*.safetensors")]
    assert names and all((tmp_path / "fork" / n).read_bytes() == (tmp_path / "command" / n).read_bytes() for n in names)


def test_a_fork_that_is_told_to_leave_saves_and_one_that_is_killed_is_told_apart(pool, tmp_path):
    saved, killed = start_long(pool, tmp_path / "a"), start_long(pool, tmp_path / "b")
    saved.terminate()
    os.kill(killed.pid, signal.SIGKILL)
    assert (saved.wait(), killed.wait()) == (143, -signal.SIGKILL)
    assert [*(tmp_path / "a").glob("state-*.ckpt")] and len(pool.starters) == 2
    assert pool.start(tmp_path / "c", ["--version"]).wait() == 0 and len(pool.starters) == 2  # the starters live on


def test_a_fork_saves_and_leaves_when_its_starter_dies(pool, tmp_path):
    fork = start_long(pool, tmp_path / "run")
    fork.starter.process.kill()
    assert fork.wait() == LOST
    wait_for(lambda: not os.path.exists(f"/proc/{fork.pid}"))
    assert [*(tmp_path / "run").glob("state-*.ckpt")]
    assert pool.start(tmp_path / "other", ["--version"]).wait() == 0  # by a new starter


def test_what_is_ended_before_the_imports_are_done_ends_at_once(pool, tmp_path):
    fork = pool.start(tmp_path / "run", LONG)
    fork.terminate()
    assert fork.wait() == LOST and not (tmp_path / "run" / "config.json").exists()


def test_a_killed_run_of_a_sweep_is_told_and_the_next_one_is_done(tmp_path):
    jobs = []
    for name, steps in (("killed", "1000000"), ("done", "3")):
        folder = tmp_path / name
        words = ["train", "digits", *TINY, "--steps", steps, "--valid-every", "1", "--quiet", "--out", str(folder)]
        jobs.append(Job(EXPERIMENTS["digits"], folder, words, [], lambda: True))

    def show(_):
        first = jobs[0]
        if first.process.pid and first.stage == "training" and (first.folder / "metrics.jsonl").exists():
            os.kill(first.process.pid, signal.SIGKILL)

    run_jobs(jobs, 1, show, pause=0.05)
    assert (jobs[0].stage, jobs[1].stage) == ("failed", "done")
    assert jobs[0].problem == "killed by SIGKILL while training; is there enough memory? lower --jobs"
    assert json.loads((tmp_path / "done" / "result.json").read_text())["steps"] == 3
