"""Many runs: which are still to do, in which order, how long they take, and a pool of processes that does them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bsvi.experiments.config import Experiment
from bsvi.runs import results
from bsvi.sweeps.forks import Forked, ForkPool
from bsvi.system.files import open_to_read, open_to_write, printable
from bsvi.system.reading import parse_json, read_json
from bsvi.training.team import end_with_parent

ENDED = ("done", "failed", "stopped")  # stopped: saved at its time limit, to be taken up again


@dataclass
class Job:
    """One method with one seed: train, then evaluate, then draw if there are words for it."""

    experiment: Experiment
    folder: Path
    train: list[str]  # words after ``bsvi``
    evaluate: list[str]
    scored: Callable[[], bool]  # can be pickled, as jobs are shipped to other machines
    sample: list[str] = field(default_factory=list)  # none: no pictures
    source: Path | None = None  # the run that it goes on from
    process: subprocess.Popen[bytes] | Forked | None = field(default=None, repr=False)
    stage: str = "waiting"  # waiting, training, evaluating, drawing; then one of ENDED
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.experiment.phases or self.experiment.method} seed {self.experiment.seed}"

    @property
    def trained(self) -> bool:
        return (self.folder / "result.json").exists()

    def last_line(self) -> dict[str, Any]:
        """The last line of metrics, or nothing."""
        return last_line(self.folder)

    def step(self) -> int:
        """The step of the last line of metrics."""
        step = self.last_line().get("step")
        return step if isinstance(step, int) else 0

    def saved(self) -> tuple[bool, str, int]:
        """What would survive if everything died now: trained or not, the newest checkpoint, bytes of evaluated images."""
        found = [*self.folder.glob("state-*.ckpt"), *self.folder.glob("evaluation-*.jsonl")]
        states = [path.name for path in found if path.suffix == ".ckpt"]
        images = 0
        for path in found:
            if path.suffix == ".jsonl" and path.exists():
                images += path.stat().st_size
        return self.trained, max(states, default="", key=lambda name: (len(name), name)), images

    def next_words(self) -> list[str] | None:
        """What to run next, or None when all is done."""
        if not self.trained:
            self.stage = "training"
            return self.train
        if not self.scored():
            self.stage = "evaluating"
            return self.evaluate
        if self.sample and not (self.folder / "samples/reconstructions.png").exists():
            self.stage = "drawing"
            return self.sample
        self.stage = "done"
        return None

    def stop(self) -> None:
        """Its training has left before the end, with all saved."""
        self.stage, self.problem = "stopped", f"saved at step {self.step()}, at its time limit"


def last_line(folder: Path) -> dict[str, Any]:
    """The last line of a run's metrics, or nothing."""
    try:
        with open_to_read(folder / "metrics.jsonl") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = [line for line in file.read().splitlines() if line.startswith(b'{"split"') and line.endswith(b"}")]
        found = parse_json(lines[-1], nan=True) if lines else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def is_scored(
    folder: Path, k: int, examples: int | None, iwae: Collection[int] | None = None, estimates: Collection[str] = ()
) -> bool:
    """Whether a result answers this question: the same k, as many test images, all these IWAE draws and further estimates."""
    try:
        images = read_json(folder / "config.json")["data"].get("test")
        wanted = min((n for n in (examples, images) if n is not None), default=0)
        draws = {str(n) for n in iwae or ()}
        return any(
            scores.get("k") == k
            and scores.get("examples", 0) >= wanted
            and draws <= {*scores.get("iwae", ())}
            and {*estimates} <= {name for name, part in scores.get("estimates", {}).items() if part["images"] >= wanted}
            for scores in results.read_entries(folder)
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def run_jobs(jobs: list[Job], workers: int, show: Callable[[list[Job]], None], pause: float = 0.2) -> None:
    """Work through the jobs with so many processes; a failed one does not stop the others. Ends early on KeyboardInterrupt."""
    waiting = [job for job in jobs if job.next_words() is not None]
    for job in waiting:
        job.stage = "waiting"
    running: list[Job] = []
    pool = ForkPool()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                start(job := waiting.pop(0), pool)
                if job.stage != "done":  # by somebody else, while it waited here
                    running.append(job)
            for job in list(running):
                if job.process is not None and job.process.poll() is not None:
                    finish(job, pool)
                    if job.stage in ENDED:
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
        pool.close()


def start(job: Job, pool: ForkPool) -> None:
    words = job.next_words()
    if words is not None:
        job.process = pool.start(job.folder, words) if sys.platform == "linux" else launch(job.folder, words)


def launch(
    folder: Path, words: list[str], program: tuple[str, ...] = ("-m", "bsvi"), environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """``bsvi WORDS`` as a process that is told to save and leave should this one die; what it complains of is in errors.txt."""
    own = program == ("-m", "bsvi")  # other programs see to that themselves
    with os.fdopen(open_to_write(folder / "errors.txt"), "wb") as errors:
        errors.truncate(0)
        return subprocess.Popen(
            [sys.executable, *program, *words],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            preexec_fn=partial(end_with_parent, signal.SIGTERM) if own else None,
        )


def finish(job: Job, pool: ForkPool) -> None:
    """A process has ended: go to the next stage, or note why not."""
    before = job.stage
    code = 1 if job.process is None or job.process.returncode is None else job.process.returncode
    if code == 0 and job.next_words() is None:
        (job.folder / "errors.txt").unlink(missing_ok=True)
        return
    if code == 0 and job.stage != before:
        start(job, pool)
        return
    if code == 0 and before == "training" and job.saved()[1]:
        job.stop()
        return
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    more = "; is there enough memory? lower --jobs" if code == -signal.SIGKILL else ""
    job.stage, job.problem = "failed", read_complaint(job.folder) or f"{how} while {before}{more}"
    if job.saved() == (False, "", 0):
        remove_failed_start(job.folder)


def remove_failed_start(folder: Path) -> None:
    """Remove a folder that a failed start has left, with nothing in it but the one line that was told."""
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == ["errors.txt"]:
            with open_to_read(folder / "errors.txt") as file:
                one_line = file.read(10_000).count(b"\n") <= 1
            if one_line:
                (folder / "errors.txt").unlink()
                folder.rmdir()


def read_complaint(folder: Path) -> str:
    """The last line of errors.txt."""
    try:
        with open_to_read(folder / "errors.txt") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return printable(lines[-1]) if lines else ""
