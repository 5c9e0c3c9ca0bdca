"""Many runs: which are still to do, in which order, how long they take, and a pool of processes that does them."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bsvi.config import Experiment


@dataclass
class Job:
    """One method with one seed: train, then evaluate."""

    experiment: Experiment
    folder: Path
    train: list[str]  # words after ``bsvi``
    evaluate: list[str]
    scored: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    stage: str = "waiting"  # waiting, training, evaluating, done, failed
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.experiment.method} seed {self.experiment.seed}"

    @property
    def trained(self) -> bool:
        return (self.folder / "result.json").exists()

    def step(self) -> int:
        """The step of the last line of metrics."""
        try:
            with open(self.folder / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = [
                    line for line in file.read().splitlines() if line.startswith(b'{"split"') and line.endswith(b"}")
                ]
            return int(json.loads(lines[-1])["step"]) if lines else 0
        except (OSError, ValueError, KeyError):
            return 0

    def next_words(self) -> list[str] | None:
        """What to run next, or None when all is done."""
        if not self.trained:
            self.stage = "training"
            return self.train
        if not self.scored():
            self.stage = "evaluating"
            return self.evaluate
        self.stage = "done"
        return None


def run_jobs(jobs: list[Job], workers: int, show: Callable[[list[Job]], None], pause: float = 0.2) -> None:
    """Work through the jobs with so many processes; a failed one does not stop the others. Ends early on KeyboardInterrupt."""
    waiting = [job for job in jobs if job.next_words() is not None]
    for job in waiting:
        job.stage = "waiting"
    running: list[Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                start(job := waiting.pop(0))
                running.append(job)
            for job in list(running):
                if job.process is not None and job.process.poll() is not None:
                    finish(job)
                    if job.stage in ("done", "failed"):
                        running.remove(job)
            show(jobs)
            time.sleep(pause)
    finally:
        for job in running:
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()  # it saves and leaves
        for job in running:
            if job.process is not None:
                job.process.wait()


def start(job: Job) -> None:
    words = job.next_words()
    if words is None:
        return
    job.folder.mkdir(parents=True, exist_ok=True)
    with open(job.folder / "errors.txt", "wb") as errors:
        job.process = subprocess.Popen(
            [sys.executable, "-m", "bsvi", *words],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """In the child: be told to save and leave (SIGTERM) should the sweep itself be killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def finish(job: Job) -> None:
    """A process has ended: go to the next stage, or note why not."""
    before = job.stage
    code = job.process.returncode if job.process is not None else 1
    if code == 0 and job.next_words() is None:
        (job.folder / "errors.txt").unlink(missing_ok=True)
        return
    if code == 0 and job.stage != before:
        start(job)
        return
    lines = (job.folder / "errors.txt").read_text(errors="replace").strip().splitlines()
    job.stage, job.problem = "failed", lines[-1] if lines else f"ended with exit code {code} while {before}"
