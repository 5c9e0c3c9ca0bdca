"""SIGKILL at random times, SIGKILL inside a save, and signals, in full: behind -m slow."""

import random
import shutil
import signal
import time
from collections import Counter

import pytest

from tests.training import faults
from tests.training.children import METHODS, Child, ending, train_through, train_words, whole_checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def references(place):
    """The uninterrupted run of each method, and how long one takes."""
    found, seconds = {}, []
    for method in METHODS:
        start = time.monotonic()
        train_through(place / f"reference-{method}", "--method", method)
        seconds.append(time.monotonic() - start)
        found[method] = ending(place / f"reference-{method}")
    found["seconds"] = max(seconds[1:])
    return found


def test_sigkill_at_random_times_for_each_method(place, references, tally):
    chance, good, killed, stages, attempts = random.Random(0), 0, 0, Counter(), 0
    while killed < 200:
        attempts += 1
        method = METHODS[attempts % len(METHODS)]
        folder, stage = place / "run", place / "stage"
        stage.write_bytes(b"\0")
        child = Child(train_words(folder, "--method", method), folder, faults.mark_stages, stage)
        if child.kill_after(chance.uniform(0.02, references["seconds"])):
            killed += 1
            stages[faults.read_stage(stage)] += 1
            child = Child(train_words(folder, "--method", method), folder)
            good += child.wait() == 0 and ending(folder) == references[method]
        shutil.rmtree(folder)
    tally("SIGKILL at random times", good, killed, methods=len(METHODS), stages=dict(stages))


def test_sigkill_after_the_last_save_and_before_the_result(place, references, tally):
    good = 0
    for method in METHODS:
        folder = place / "run"
        assert Child(train_words(folder, "--method", method), folder, kill_before_result).wait() == -signal.SIGKILL
        assert not (folder / "result.json").exists()
        good += (
            Child(train_words(folder, "--method", method), folder).wait() == 0 and ending(folder) == references[method]
        )
        shutil.rmtree(folder)
    tally("SIGKILL after the last save", good, len(METHODS))


def kill_before_result():
    import os

    from bsvi.runs.folder import Run

    write = Run.write
    Run.write = lambda self, name, value: (
        os.kill(os.getpid(), signal.SIGKILL) if name == "result.json" else write(self, name, value)
    )


def test_sigkill_during_validation(place, references, tally):
    good = 0
    for method in METHODS:
        folder = place / "run"
        words = train_words(folder, "--method", method, "--save-every", "1e-9")
        for look in range(1, 5):
            assert Child(words, folder, kill_in_validation, 1 if look > 1 else 2).wait() == -signal.SIGKILL
        good += Child(words, folder).wait() == 0 and ending(folder) == references[method]
        shutil.rmtree(folder)
    tally("SIGKILL during validation, four times in a run", good, len(METHODS))


def kill_in_validation(look):
    """SIGKILL after the objective was called in the look-th look at the validation images."""
    import os

    import bsvi.training.loop

    validate, count = bsvi.training.loop.validate, [0]

    def killed(*words, **more):
        count[0] += 1
        found = validate(*words, **more)
        return os.kill(os.getpid(), signal.SIGKILL) if count[0] == look else found

    bsvi.training.loop.validate = killed


def test_sigkill_inside_a_save(place, references, tally):
    folder, total = place / "run", place / "calls"
    words = train_words(folder, "--method", "bsvi-sir-pi", "--save-every", "1e-9")  # after every step
    assert Child(words, folder, faults.kill_in_save, -1, "before", total).wait() == 0
    shutil.rmtree(folder)
    calls = int(total.read_text())
    chance = random.Random(0)
    points = [(call, moment) for call in range(2, calls + 1) for moment in ("before", "within", "after")]
    points = chance.sample(points, 500) if len(points) >= 500 else chance.choices(points, k=500)
    whole = resumed = tried = 0
    for number, (call, moment) in enumerate(points):
        assert Child(words, folder, faults.kill_in_save, call, moment).wait() == -signal.SIGKILL
        steps, damaged = whole_checkpoints(folder)
        whole += not damaged and (bool(steps) or call < 20)
        if number % 5 == 0:
            tried += 1
            resumed += Child(words, folder).wait() == 0 and ending(folder) == references["bsvi-sir-pi"]
        shutil.rmtree(folder)
    tally("SIGKILL inside a save: newest checkpoint whole", whole, len(points), calls_that_reach_the_disk=calls)
    tally("SIGKILL inside a save: resumed bitwise", resumed, tried)


def test_signals_save_and_resume_bitwise(place, references, tally):
    chance, good, saved = random.Random(0), 0, 0
    kinds = (("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 0))
    for number in range(50):
        name, code = kinds[number % 3]
        method, folder = METHODS[number % len(METHODS)], place / "run"
        child = Child(train_words(folder, "--method", method), folder, faults.slow_steps, 0.01)
        child.wait_until(lambda folder=folder: (folder / "metrics.jsonl").exists())
        time.sleep(chance.uniform(0.0, 0.35))
        child.signal(getattr(signal, name))
        right = child.wait() == code and f"({name})" in child.said()
        saved += right
        good += right and Child(train_words(folder, "--method", method), folder).wait() == 0
        good -= right and ending(folder) != references[method]
        shutil.rmtree(folder)
    tally("SIGTERM, SIGINT, SIGUSR1: saved with their exit code", saved, 50)
    tally("SIGTERM, SIGINT, SIGUSR1: resumed bitwise", good, 50)


def test_a_second_signal_ends_at_once_and_damages_nothing(place, references, tally):
    chance, good, at_once = random.Random(0), 0, 0
    for number in range(50):
        folder = place / "run"
        words = train_words(folder, "--method", "bsvi", "--save-every", "1e-9")
        child = Child(words, folder, faults.slow_steps, 0.03, 0.001)
        child.wait_until(lambda folder=folder: (folder / "metrics.jsonl").exists())
        child.signal((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)[number % 3])
        time.sleep(chance.uniform(0.002, 0.03))
        start = time.monotonic()
        child.signal((signal.SIGINT, signal.SIGTERM)[number % 2])
        child.wait()
        at_once += time.monotonic() - start < 1.0
        undamaged = whole_checkpoints(folder)[1] == []
        good += undamaged and Child(words, folder).wait() == 0 and ending(folder) == references["bsvi"]
        shutil.rmtree(folder)
    tally("a second signal: ends within a second", at_once, 50)
    tally("a second signal: resumed bitwise", good, 50)
