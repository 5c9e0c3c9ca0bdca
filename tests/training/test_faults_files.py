"""Damaged, truncated and hostile checkpoints, and a full disk, in full: behind -m slow."""

import json
import os
import random
import shutil
import signal
import subprocess

import pytest

from bsvi.runs.checkpoint import BadCheckpoint, unpack
from bsvi.runs.folder import Run
from tests.training import faults
from tests.training.children import Child, ending, train_through, train_words
from tests.training.hostile import hostile_files
from tests.training.test_checkpoint import cuts, flips

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
METHOD = ("--method", "bsvi-sir-pi")


@pytest.fixture
def finished(place):
    """A finished run without its result, its ending, and its two checkpoints."""
    train_through(place / "finished", *METHOD)
    expected = ending(place / "finished")
    (place / "finished" / "result.json").unlink()
    return place / "finished", expected, *Run(place / "finished").checkpoints()


def named_and_passed_over(folder, newest, data):
    """Whether a run with this as its newest checkpoint falls back to the one before, and says so."""
    newest.write_bytes(data)
    run = Run(folder)
    _, scalars = run.find()
    return scalars["step"] < int(newest.stem[6:]) and run.warnings[0].startswith(f"{newest.name} is not used: ")


def test_one_flipped_bit(finished, tally):
    folder, expected, newest, _ = finished
    whole = newest.read_bytes()
    found = fell_back = 0
    for data in flips(whole, 1000):
        try:
            unpack(data)
        except BadCheckpoint:
            found += 1
        fell_back += named_and_passed_over(folder, newest, data)
    tally("one flipped bit: detected", found, 1000, bytes=len(whole))
    tally("one flipped bit: falls back and names the file", fell_back, 1000)
    resumed = through_whole_runs(folder, expected, newest, list(flips(whole, 1000, seed=1))[-10:])
    tally("one flipped bit: whole run resumed bitwise", resumed, 10)


def test_truncated(finished, tally):
    folder, expected, newest, _ = finished
    whole = newest.read_bytes()
    fell_back = sum(named_and_passed_over(folder, newest, data) for data in cuts(whole, 200))
    tally("truncated checkpoint: falls back and names the file", fell_back, 200)
    resumed = through_whole_runs(folder, expected, newest, list(cuts(whole, 10, seed=1)))
    tally("truncated checkpoint: whole run resumed bitwise", resumed, 10)


def through_whole_runs(folder, expected, newest, damaged):
    good = 0
    for number, data in enumerate(damaged):
        copy = folder.parent / f"copy-{number}"
        shutil.copytree(folder, copy)
        (copy / newest.name).write_bytes(data)
        child = Child(train_words(copy, *METHOD), copy)
        warned = child.wait() == 0 and f"{newest.name} is not used" in (copy / "log.txt").read_text()
        good += warned and ending(copy) == expected
        shutil.rmtree(copy)
    return good


def test_hostile_files(finished, place, tally):
    folder, _, newest, previous = finished
    previous.unlink()
    canary = place / "canary"
    files = hostile_files(newest.read_bytes(), canary)
    refused = 0
    for name, data in files.items():
        newest.write_bytes(data)
        child = Child(train_words(folder, *METHOD), folder, faults.limit_memory, 1 << 30)
        code, lines = child.wait(), child.said().strip().splitlines()
        good = code == 1 and len(lines) == 1 and lines[0].startswith("bsvi train: ") and not canary.exists()
        refused += good
        if not good:
            print(f"NOT REFUSED: {name}: exit {code}, {lines[-3:]}, canary {canary.exists()}")
    tally("hostile checkpoint files: refused in one line, canary never created", refused, len(files))


def test_disk_full(place, tally):
    chance = random.Random(0)
    train_through(place / "reference", *METHOD)
    expected = ending(place / "reference")
    # early ones have no best weights
    smallest = min(path.stat().st_size for path in Run(place / "reference").checkpoints()) // 2
    good = 0
    for _ in range(40):
        folder, first = place / "run", chance.randrange(2, 8)
        last, limit = first + chance.randrange(1, 8), chance.randrange(smallest)
        words = train_words(folder, *METHOD, "--save-every", "1e-9")
        child = Child(words, folder, faults.full_disk, first, last, limit)
        code = child.wait()
        seen = json.loads(child.said().splitlines()[0]) if code == 0 else {}
        held = seen == {"failed": last - first, "intact": last - first, "temporaries": 0}
        good += held and ending(folder) == expected
        shutil.rmtree(folder)
    tally("disk full for a while (RLIMIT_FSIZE): checkpoint intact, no temporary file, end bitwise", good, 40)


def test_disk_full_on_a_small_tmpfs(place, tally):
    chance = random.Random(1)
    train_through(place / "reference", *METHOD)
    expected = ending(place / "reference")
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here; it needs root")
    good = 0
    try:
        for _ in range(10):
            folder, filler = disk / "run", disk / "filler"
            words = [word for word in train_words(folder, *METHOD) if word != "--quiet"]
            child = Child(words, place / "run", faults.slow_steps, 0.01)
            child.wait_until(lambda folder=folder: len(Run(folder).checkpoints()) == 2)
            fill(filler, chance.randrange(30_000))
            child.wait_until(lambda child=child: "training goes on" in child.said())
            held = not list(folder.glob(".*.tmp")) and Run(folder).find() is not None
            filler.unlink()
            good += held and child.wait() == 0 and ending(folder) == expected
            shutil.rmtree(folder)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    tally("disk full for a while (tmpfs): checkpoint intact, no temporary file, end bitwise", good, 10)


def fill(path, left):
    """Take all the room there is but for some bytes."""
    room = os.statvfs(path.parent)
    with open(path, "wb") as file:
        file.write(bytes(max(0, room.f_bavail * room.f_frsize - left)))


def test_disk_full_until_the_end(place, tally):
    train_through(place / "reference", *METHOD)
    expected = ending(place / "reference")
    good = 0
    for limit in (0, 300, 3000, 15_000, 30_000):
        folder = place / "run"
        words = train_words(folder, *METHOD, "--save-every", "1e-9")
        child = Child(words, folder, faults.full_disk, 5, 10**9, limit)
        code, said = child.wait(), child.said()
        told = code == 1 and (limit < 500 or "the end of the run could not be saved" in said)
        intact = (
            Run(folder).find()[1]["step"] == 4 and not list(folder.glob(".*")) and not (folder / "result.json").exists()
        )
        good += told and intact and Child(words, folder).wait() == 0 and ending(folder) == expected
        shutil.rmtree(folder)
    tally("disk full until the end: exit 1, no result; run again with room: end bitwise", good, 5)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_not_finite(place, tally, value):
    good = 0
    for site in ("data", "decoder", "gradient", "pi"):
        folder = place / "run"
        words = train_words(folder, "--method", "bsvi-pi", "--save-every", "1e-9")
        child = Child(words, folder, faults.not_finite, site, float(value), 13)
        code, said = child.wait(), child.said()
        saved = [unpack(path.read_bytes())[0] for path in Run(folder).checkpoints()]
        finite = all(bool(t.isfinite().all()) for tensors in saved for t in tensors.values() if t.is_floating_point())
        good += code == 3 and "step 13: " in said and "batch ids " in said and len(saved) == 2 and finite
        shutil.rmtree(folder)
    tally(f"{value} in data, decoder output, gradient, pi: exit 3, no bad parameter saved", good, 4)


def test_nothing_of_ours_is_left_running():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_read_only_folder(place, tally):
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here; it needs root")
    good = 0
    try:
        train_through(disk / "finished")
        Child(train_words(disk / "begun", "--time-limit", "0.05"), place / "begun").wait()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        child = Child(train_words(disk / "finished"), place / "finished")
        good += child.wait() == 0 and "finished before" in child.said()
        for name in ("begun", "new"):
            child = Child(train_words(disk / name), place / name)
            code, lines = child.wait(), child.said().strip().splitlines()
            good += (
                code == 1 and len(lines) == 1 and "Read-only file system); choose another folder with --out" in lines[0]
            )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    tally("read-only folder: a finished run prints its result, others are refused in one line", good, 3)
