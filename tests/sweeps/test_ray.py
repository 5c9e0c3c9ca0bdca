"""Sweeps on a real Ray: on one machine, on a cluster of two nodes of which one is killed, and stopped by a signal."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bsvi.runs.folder import Run
from bsvi.sweeps.attempt import is_locked
from tests.sweeps.cluster import family, kill_all, session, sweeps, wait_for

pytest.importorskip("ray", reason="the extra ray is not installed")

TINY = ["--net.kind", "mlp", "--net.hidden", "16", "--net.latent", "4", "--svi.steps", "2", "--logger", "none"]
TINY += ["--k", "5", "--examples", "20", "--iwae", "5", "--on", "ray"]


@pytest.fixture
def sweep(tmp_path):
    short = tempfile.mkdtemp(prefix="b", dir="/tmp")  # sockets have paths of at most 107 characters
    with sweeps(tmp_path, TMPDIR=short, RAY_USAGE_STATS_ENABLED="0") as start:
        yield start
    shutil.rmtree(short, ignore_errors=True)


@pytest.fixture
def cluster():
    """Address and second raylet of a cluster of two nodes with one CPU each."""
    short = tempfile.mkdtemp(prefix="b", dir="/tmp")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.cluster"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield json.loads(process.stdout.readline())
        process.stdin.close()
        process.wait(60)
    finally:
        kill_all(session(process.pid))
        process.wait()
        shutil.rmtree(short, ignore_errors=True)


def said(tmp_path):
    return "".join(path.read_text() for path in sorted(tmp_path.glob("said-*.txt")))


def steps_of(folder, split):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["split"] == split]


def test_a_sweep_on_a_local_ray_trains_evaluates_and_leaves_nothing(tmp_path, sweep):
    words = ["--methods", "vae,svi", "--steps", "20", "--valid-every", "10", "--log-every", "5", *TINY]
    bad = tmp_path / "runs/digits/svi-seed0"
    bad.mkdir(parents=True)
    (bad / "config.json").write_text("{")
    process = sweep(*words)
    assert process.wait(200) == 1, said(tmp_path)
    assert "failed: svi seed 0: bsvi train:" in said(tmp_path) and "1 of 2 runs are complete" in said(tmp_path)
    good = tmp_path / "runs/digits/vae-seed0"
    assert steps_of(good, "train") == [5, 10, 15, 20]
    assert json.loads((good / "scores.json").read_text())["test"]["examples"] == 20
    assert not session(process.pid), "processes of Ray are left"


EVERY, STEPS = 0.3, 1200
SEEDS = ["--methods", "vae", "--seeds", "0:2", "--steps", STEPS, "--valid-every", 600, "--log-every", 20]
SEEDS += ["--save-every", EVERY, *TINY]


def on_the_second_node(tmp_path, cluster, process):
    """The folder of a run whose process descends from the second raylet and has saved twice, and that process."""
    members = family(cluster["raylet"])
    for folder in tmp_path.glob("runs/digits/vae-seed*"):
        try:
            owner = json.loads((folder / "lock").read_text())["pid"]
        except (OSError, ValueError):
            continue
        if owner in members and len(list(folder.glob("state-*.ckpt"))) == 2:
            return folder, owner
    assert process.poll() is None, said(tmp_path)
    return None


def check_that_each_run_is_whole(tmp_path):
    assert "2 of 2 runs are complete" in said(tmp_path)
    assert "its node died; sent again, it goes on from what is saved" in said(tmp_path)
    for seed in range(2):
        folder = tmp_path / f"runs/digits/vae-seed{seed}"
        assert steps_of(folder, "train") == list(range(20, STEPS + 1, 20))
        assert steps_of(folder, "valid") == [600, 1200]
        assert json.loads((folder / "result.json").read_text())["steps"] == STEPS
        assert (folder / "log.txt").read_text().count("finished (steps)") == 1
        assert json.loads((folder / "scores.json").read_text())["test"]["examples"] == 20


@pytest.mark.slow
def test_a_node_is_killed_and_the_sweep_finishes_each_run_once(tmp_path, cluster, sweep):
    process = sweep(*SEEDS, "--address", cluster["address"])
    victim, _ = wait_for(lambda: on_the_second_node(tmp_path, cluster, process))
    time.sleep(0.7 * EVERY)  # between two checkpoints
    kill_all(family(cluster["raylet"]))  # the raylet, its workers, and the training itself: nothing can save any more
    killed = time.time()
    saved = max(victim.glob("state-*.ckpt"), key=lambda path: path.name)
    reached, age = steps_of(victim, "train")[-1], killed - saved.stat().st_mtime
    at = int(saved.stem.removeprefix("state-"))

    assert process.wait(240) == 0, said(tmp_path)
    check_that_each_run_is_whole(tmp_path)
    notes = (victim / "log.txt").read_text()
    assert notes.count("resumed at step") == 1 and f"resumed at step {at}" in notes
    print(f"killed at step {reached} or a little later, resumed at step {at}, saved {age:.2f} s before the kill")
    assert 0 < at < STEPS and reached < STEPS
    assert age < EVERY + 2.0  # a busy machine may stop a process between its steps


@pytest.mark.slow
def test_a_node_that_is_given_up_but_lives_never_writes_together_with_its_successor(tmp_path, cluster, sweep):
    process = sweep(*SEEDS, "--address", cluster["address"])
    victim, _ = wait_for(lambda: on_the_second_node(tmp_path, cluster, process))
    frozen = family(cluster["raylet"])
    for pid in frozen:  # as a machine that is suspended, or cut off: dead for the others, but it has the lock
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "sent again" in said(tmp_path))
    wait_for(lambda: said(tmp_path).count("done") == 1, 200)  # there is room for the successor now
    time.sleep(5)
    step = steps_of(victim, "train")[-1]
    assert step < STEPS and is_locked(victim)  # it waits
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert process.wait(200) == 0, said(tmp_path)
    check_that_each_run_is_whole(tmp_path)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
    ids=lambda number: number.name,
)
def test_a_stopped_sweep_has_its_runs_save_and_leaves_nothing(tmp_path, sweep, number):
    process = sweep("--methods", "vae", "--steps", 10**6, "--valid-every", 10**6, "--log-every", 20, *TINY)
    folder = tmp_path / "runs/digits/vae-seed0"
    wait_for((folder / "metrics.jsonl").exists)
    process.send_signal(number)
    code = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert process.wait(100) == code, said(tmp_path)
    if number != signal.SIGKILL:
        assert not session(process.pid), "processes of Ray are left"
        assert said(tmp_path).strip().endswith("everything is saved, run the same command again to go on")
    wait_for(lambda: not is_locked(folder), 30)  # killed: its worker dies, and the training is told to save and leave
    with Run(folder) as run:
        assert run.load()[1]["step"] > 0
    wait_for(lambda: not session(process.pid), 120)  # two helpers of Ray look for their dead cluster for a minute
