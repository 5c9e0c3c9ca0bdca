"""One attempt at one run on whatever machine this is: train, then evaluate, each in a process of its own.

Training goes on from its checkpoint and evaluation from its finished images, so an attempt may begin where another died.
"""

import fcntl
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bsvi.sweeps.jobs import Job, launch, read_complaint
from bsvi.system.clock import Stopwatch
from bsvi.system.files import open_to_read

TRIES = 3  # a process that is killed, or leaves before its end, is taken up again; so often without anything new saved


@dataclass(frozen=True)
class JobEnvironment:
    """Where a shipped job finds things: the folder that relative paths start from, and variables of its caller."""

    folder: Path
    environment: dict[str, str]
    patience: float = 300.0  # seconds to wait for an older attempt that still holds the run folder

    @classmethod
    def here(cls, gpus: float | None = None) -> "JobEnvironment":
        """This folder and the variables that say where data are; without a GPU granted, none is to be seen."""
        kept = {name: value for name in ("BSVI_DATA_DIR", "BSVI_CACHE_DIR") if (value := os.environ.get(name))}
        kept = {name: str(Path(value).absolute()) for name, value in kept.items()}
        return cls(Path.cwd(), {**kept, **({"CUDA_VISIBLE_DEVICES": ""} if gpus == 0 else {})})


def strip_process(job: Job) -> Job:
    """The job as it is sent elsewhere: without its process."""
    return replace(job, process=None)


class Attempt:
    """``run()`` does what is missing of a job and returns "" or what went wrong; setting ``stopping`` ends it early."""

    def __init__(self, job: Job, place: JobEnvironment) -> None:
        self.job, self.place = job, place
        self.pid = 0  # of the process in hand
        self.asked: set[int] = set()  # signals it was sent
        self.stopping = False
        self.limited = False  # training has left at a time limit of its own

    def run(self) -> str:
        if self.place.folder.is_dir():
            os.chdir(self.place.folder)
        wait_until_free(self.job.folder, self.place.patience)
        saved, idle = self.job.saved(), 0
        while not self.stopping and (words := self.job.next_words()) is not None:
            code = self._process(words)
            if code > 0 and code not in (130, 143):  # its own error: the same would happen again
                return read_complaint(self.job.folder) or f"ended with exit code {code} while {self.job.stage}"
            if code == 0 and not self.asked and "--time-limit" in words and not self.job.trained:
                self.limited = True
                break
            before, saved = saved, self.job.saved()
            idle = 0 if saved != before else idle + 1
            if idle == TRIES:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"
                more = "; is there enough memory?" if code == -signal.SIGKILL else ""
                return f"{how} while {self.job.stage}, {TRIES} times without anything new saved{more}"
        if not self.stopping:
            (self.job.folder / "errors.txt").unlink(missing_ok=True)
        return ""

    def _process(self, words: list[str]) -> int:
        """The exit code of ``bsvi WORDS``; an exception in here (a signal, a cancelled task) ends the process first."""
        guarded = ("-m", "bsvi.sweeps.child", str(os.getpid()))
        child = launch(self.job.folder, words, guarded, self.place.environment)
        self.pid, self.asked = child.pid, set()
        try:
            while not self.has_ended():
                if self.stopping:
                    self.ask(signal.SIGTERM)
                time.sleep(0.1)
        finally:
            self.end(signal.SIGTERM, 60.0)
            child.wait()
            self.pid = 0
        return child.returncode

    def has_ended(self) -> bool:
        """Whether there is no process in hand any more; can be called by a signal handler, as it takes no lock."""
        if not self.pid:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def end(self, number: int, patience: float) -> None:
        """Have the process save and leave, if there is one; kill it if it has not after so many seconds."""
        waited = Stopwatch()
        while not self.has_ended() and waited.seconds < patience:
            self.ask(number)
            time.sleep(0.1)
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)

    def ask(self, number: int) -> None:
        """Send a signal once, and only while it is listened to.

        A later signal kills training at once, and SLURM may have sent the first one to all processes of the job. Training
        stops listening when it has one; evaluation and drawing never listen, and can be killed at any time.
        """
        if number not in self.asked and (self.job.stage != "training" or has_handler(self.pid, number)):
            self.asked.add(number)
            os.kill(self.pid, number)


def has_handler(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal; True where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def wait_until_free(folder: Path, patience: float) -> bool:
    """Wait while another process has the run folder or one of its evaluations, at most so many seconds.

    A node that was given up may still live: its process has the folder's lock until it has ended. Whoever starts after this
    takes the lock itself, and is refused if it is still held: never do two write at once.
    """
    waited = Stopwatch()
    while is_locked(folder):
        if waited.seconds > patience:
            return False
        time.sleep(0.5)
    return True


def is_locked(folder: Path) -> bool:
    """Whether a living process has a lock in this run folder."""
    for path in (folder / "lock", *folder.glob("evaluation-*.jsonl")):
        try:
            file = open_to_read(path)
        except OSError:
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that only look do not see each other
            except OSError:
                return True
    return False
