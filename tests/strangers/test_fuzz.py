"""Spoilt run folders through evaluate, sample, gap and report: one line or a result, in time, in memory, in their folder."""

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bsvi.cli import main
from tests.report.made_runs import make_run as make_reported
from tests.strangers.made import make_run
from tests.strangers.mutations import mutation, spoil

SECONDS = 60  # no verb may take longer: a good folder takes less than one, on a machine that does nothing else
COMMON = ["--examples", "3", "--quiet", "--device", "cpu", "--threads", "1", "--compile", "off"]
VERBS = {
    "evaluate": ["--k", "1", "--iwae", "2", *COMMON],
    "gap": ["--k", "2", "--steps", "2", *COMMON],
    "sample": ["--rows", "1", "--columns", "2", "--device", "cpu"],
    "report": [],
}


READ = {  # what each reads first of all
    "evaluate": ("model", "evaluation", "scores", "config"),
    "gap": ("model", "gap"),
    "sample": ("model",),
    "report": ("config", "metrics", "result", "scores", "samples/latents.png"),
}


class Worker:
    """The process that runs verbs; a new one where the old one did not answer."""

    def __init__(self, good):
        self.good, self.process = good, None

    def start(self):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MPLBACKEND": "Agg"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.strangers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        place = self.good.parent / "warm"
        shutil.copytree(self.good, place / "run")
        assert self.ask([words(verb, place) for verb in VERBS], 240) == "ready"
        shutil.rmtree(place)

    def ask(self, question, seconds=SECONDS):
        if self.process is None:
            self.start()
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.stop()
            pytest.fail(f"no answer to {question} within {seconds} s, or the process died")
        return json.loads(line)

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def words(verb, place):
    return [verb, str(place / "run"), *VERBS[verb], *(["-o", str(place / "report")] if verb == "report" else [])]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A folder with the files of all verbs, and a process that reads copies of it."""
    base = tmp_path_factory.mktemp("fuzz")
    folder = make_run(base / "run")
    reported = make_reported(base / "reported", "bsvi-sir", 0, steps=100)
    for path in reported.iterdir():
        if path.name.startswith("scores"):
            shutil.copy(path, folder / path.name)
    (folder / "scores.json").rename(base / "scores.json")
    for verb in ("evaluate", "gap", "sample"):
        assert main(words(verb, base)) == 0
    (base / "scores.json").replace(folder / "scores.json")
    worker = Worker(folder)
    yield worker
    worker.stop()


def state(folder):
    """What is there, without following links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def files_of(folder, verb):
    """The files of the folder, those that the verb reads several times over, so that they are spoilt more often."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return files + 4 * [name for name in files if name.startswith(READ[verb])]


def try_one(worker, verb, mutations):
    """Spoil a copy, run the verb, and check what it must never do; returns its exit code."""
    with tempfile.TemporaryDirectory(dir=worker.good.parent) as name:
        place = Path(name)
        shutil.copytree(worker.good, place / "run")
        (place / "outside").mkdir()
        (place / "outside" / "victim").write_text('{"precious": 1}\n')
        for what in mutations:
            spoil(place / "run", files_of(worker.good, verb), what)
        before = state(place / "outside")
        reply = worker.ask(words(verb, place))
        assert not reply["traceback"], f"{verb} {mutations}\n{reply['traceback']}"
        assert "memory" not in reply["stderr"].lower(), reply
        assert state(place / "outside") == before, "written outside"
        assert {path.name for path in place.iterdir()} <= {"run", "outside", "report"}
        assert reply["code"] in (0, 1), reply
        said = reply["stderr"].split("\n")[:-1]
        assert all(line.isprintable() for line in said), said
        if reply["code"]:
            assert len(said) == 1 and said[0].startswith(f"bsvi {verb}: "), said
        if verb == "report":
            assert reply["code"] == 0 or "no run folder" in said[0] or "does not exist" in said[0], reply
        return reply["code"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_good_folder_gives_a_result(worker, verb):
    assert try_one(worker, verb, []) == 0


OPTIONS = {"deadline": None, "database": None, "suppress_health_check": [*HealthCheck]}


@settings(max_examples=40, derandomize=True, **OPTIONS)
@given(st.sampled_from(sorted(VERBS)), st.lists(mutation, min_size=1, max_size=3))
def test_a_spoilt_folder_is_one_line_or_a_result(worker, verb, mutations):
    try_one(worker, verb, mutations)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_spoilt_folders(worker, tally):
    """The long profile: docs/reliability.md has its command and its counts."""
    count = int(os.environ.get("BSVI_FUZZ", "2000"))
    codes = {verb: Counter() for verb in VERBS}

    @settings(max_examples=count, **OPTIONS)
    @given(st.sampled_from(sorted(VERBS)), st.lists(mutation, min_size=1, max_size=4))
    def attack(verb, mutations):
        codes[verb][try_one(worker, verb, mutations)] += 1

    attack()
    total = sum(sum(counter.values()) for counter in codes.values())
    refused = {verb: counter[1] for verb, counter in codes.items()}
    tally(
        "spoilt run folders: one line or a result, in time, in memory, in their folder", total, total, refused=refused
    )


def test_no_verb_writes_through_a_link_in_place_of_any_file_it_makes(worker):
    """Each file that a verb makes or changes, replaced by a link to elsewhere, one at a time."""
    files = [path for path in worker.good.rglob("*") if path.is_file()]
    for number, name in enumerate(files_of(worker.good, "sample")[: len(files)]):
        made_by = {"samples": "sample", "gap": "gap"}.get(name.split("/")[0].split("-")[0].split(".")[0], "evaluate")
        for kind in ("link", "outside folder"):
            try_one(worker, made_by, [("kind", number, kind)])
