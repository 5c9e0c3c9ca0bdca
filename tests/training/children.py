"""Real processes that run ``bsvi train``, to be killed: forked from a server that has torch imported, so each costs little."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from bsvi.runs.checkpoint import digest, unpack
from bsvi.runs.folder import Run

TINY = """digits --net.kind mlp --net.hidden 16 --net.latent 4 --svi.steps 2 --batch-size 20 --steps 40 --valid-every 10
--log-every 7 --save-every 0.005 --threads 1 --device cpu --compile off --logger none --quiet"""
METHODS = ("vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi")

_context = multiprocessing.get_context("forkserver")
PRELOAD = (
    "torch safetensors.torch tyro bsvi.cli bsvi.commands.train bsvi.training.watch bsvi.experiments.build "
    "tests.training.warm"
)
_context.set_forkserver_preload([*PRELOAD.split(" "), __name__])


class Child:
    """One process that runs ``bsvi WORDS``; ``fault`` is called in it first, with its arguments."""

    def __init__(self, words, folder, fault=None, *arguments):
        self.output = Path(f"{folder}.output")
        self.output.unlink(missing_ok=True)
        self.process = _context.Process(target=_run, args=([*words], str(self.output), fault, arguments))
        self.process.start()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill_after(self, seconds):
        """SIGKILL after so many seconds, unless it has ended by then; returns whether it was killed."""
        self.process.join(seconds)
        self.process.kill()
        self.process.join()
        return self.process.exitcode == -signal.SIGKILL

    def wait(self, seconds=120):
        """The exit code; negative for a signal."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"still running after {seconds} s: {self.said()}")
        return self.process.exitcode

    def wait_until(self, ready, seconds=60):
        """Until ``ready()``; an error if the process ends before."""
        limit = time.monotonic() + seconds
        while not ready():
            assert self.process.is_alive() and time.monotonic() < limit, f"not ready: {self.said()}"
            time.sleep(0.002)

    def said(self):
        return self.output.read_text() if self.output.exists() else ""


def _run(words, output, fault, arguments):
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if fault is not None:
        fault(*arguments)
    from bsvi.cli import main

    try:
        code = main(words)
    except SystemExit as left:
        code = left.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def train_words(folder, *more):
    return ["train", *TINY.split(), "--out", str(folder), *more]


def train_through(folder, *more):
    """Run ``bsvi train`` to its end in a child; returns what it said."""
    child = Child(train_words(folder, *more), folder)
    code = child.wait()
    assert code == 0, f"exit {code}: {child.said()}"
    return child.said()


def ending(folder):
    """What must be equal: digest of the final checkpoint's tensors, early stopping, and the lines without their seconds."""
    run = Run(folder)
    tensors, scalars = unpack(run.checkpoints()[0].read_bytes())
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert min(line.pop("seconds"), line.pop("spent")) >= 0
    from safetensors import safe_open

    with safe_open(Path(folder) / "model.safetensors", framework="pt") as file:
        best = digest({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - not a mapping
    result = json.loads((Path(folder) / "result.json").read_text())
    result.pop("seconds")
    return digest(tensors), best, scalars["looks"], scalars["meter_steps"], lines, result


def whole_checkpoints(folder):
    """The steps of the checkpoints that are whole, and the names of those that are not."""
    whole, damaged = [], []
    for path in Run(folder).checkpoints():
        try:
            whole.append(unpack(path.read_bytes())[1]["step"])
        except ValueError:
            damaged.append(path.name)
    return whole, damaged
