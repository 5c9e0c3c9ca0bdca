"""Many processes that want one run folder, in full: behind -m slow."""

import shutil
import signal
import time

import pytest

from tests.training import faults
from tests.training.children import Child, ending, train_through, train_words
from tests.training.commands import failing, slow_after_meeting

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_fifty_simultaneous_starts_give_one_owner(place, tally):
    rounds, refused, owners = 3, 0, 0
    for number in range(rounds):
        folder = place / f"run-{number}"
        at = time.time() + 8.0  # until then all fifty stand ready
        words = train_words(folder, "--time-limit", "20")
        together = [Child(words, place / f"{number}-{i}", slow_after_meeting, at) for i in range(50)]
        codes = [child.wait(300) for child in together]
        owners += codes.count(0) == 1
        pid = together[codes.index(0)].process.pid
        refused += sum(
            code == 1 and f"process {pid} on" in child.said() for code, child in zip(codes, together, strict=True)
        )
    tally("50 simultaneous starts: one owner", owners, rounds)
    tally("50 simultaneous starts: the others are told its pid and host", refused, rounds * 49)


def test_a_second_process_is_refused_in_under_a_second(place, tally):
    folder = place / "run"
    child = Child(train_words(folder), folder, faults.slow_steps, 10.0)
    child.wait_until(lambda: (folder / "config.json").exists())
    seconds, told = [], 0
    for _ in range(50):
        start = time.monotonic()
        told += f"in use by process {child.process.pid} on" in failing(train_words(folder))
        seconds.append(time.monotonic() - start)
    child.kill_after(0)
    quick = sum(each < 1.0 for each in seconds)
    details = {
        "median_seconds": round(sorted(seconds)[25], 2),
        "slowest_seconds": round(max(seconds), 2),
        "under_1_s": quick,
    }
    tally("second process: refused with pid and host", told, 50, **details)
    assert sorted(seconds)[25] < 1.0


def test_a_dead_owners_lock_is_taken_over(place, tally):
    train_through(place / "reference")
    good = 0
    for _ in range(50):
        folder = place / "run"
        child = Child(train_words(folder), folder, faults.slow_steps, 0.01)
        child.wait_until(lambda folder=folder: (folder / "config.json").exists())
        assert child.kill_after(0) and child.process.exitcode == -signal.SIGKILL
        good += Child(train_words(folder), folder).wait() == 0 and ending(folder) == ending(place / "reference")
        shutil.rmtree(folder)
    tally("a dead owner's lock: taken over", good, 50)
