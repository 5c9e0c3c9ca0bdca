"""A sweep on SLURM through submitit: one job per run, which saves at SIGUSR1, requeues itself and goes on from there."""

import contextlib
import fcntl
import getpass
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bsvi.sweeps.attempt import Attempt, JobEnvironment, strip_process
from bsvi.sweeps.jobs import ENDED, Job, read_complaint
from bsvi.system.clock import Stopwatch
from bsvi.system.files import open_to_write, write_atomically
from bsvi.system.reading import read_json

CLUSTER = (
    "BSVI_SUBMITIT_CLUSTER"  # "local": processes of this machine in place of SLURM, to try everything but SLURM itself
)
REQUEUES = 1000  # times that a job may reach its time limit: a run of the paper takes many


@dataclass(frozen=True)
class SlurmSettings:
    folder: Path  # of the job ids, batch scripts and logs
    name: str = "bsvi"
    partition: str | None = None
    minutes: int = 60  # time limit of one job, not of a run: a run takes as many jobs as it needs
    cpus: int = 1
    gpus: int = 0
    options: dict[str, str | bool] = field(default_factory=dict)  # further flags of sbatch
    at_once: int | None = None  # jobs running at most
    grace: float = 20.0  # seconds that files of an ended job may take to be seen here

    @property
    def signal_seconds(self) -> int:
        """How long before the limit SIGUSR1 comes: the step in hand and a checkpoint must fit in."""
        return max(10, min(120, self.minutes * 60 // 4))


class OneRun:
    """What a SLURM job does; submitit calls ``checkpoint`` at SIGUSR1 and requeues the job with what it returns."""

    def __init__(self, job: Job, place: JobEnvironment, patience: float) -> None:
        self.job, self.place, self.patience = job, place, patience

    def __call__(self) -> str:
        self.attempt = Attempt(self.job, self.place)
        signal.signal(signal.SIGTERM, self._stop)
        problem = self.attempt.run()
        if problem:
            raise RuntimeError(problem)
        if self.attempt.stopping:
            time.sleep(20)  # where preemption sends SIGTERM first, SIGUSR1 comes now
            sys.exit(143)  # not an error: a preempted job is put back into the queue by SLURM, a cancelled one ends
        return "done"

    def _stop(self, number: int, frame: object) -> None:
        self.attempt.stopping = True

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        self.attempt.end(signal.SIGUSR1, self.patience)
        return DelayedSubmission(OneRun(self.job, self.place, self.patience))


class SlurmEngine:
    """Submits what is neither finished nor queued, and follows it; the jobs live on without this process."""

    def __init__(self, settings: SlurmSettings) -> None:
        self.settings = settings
        self.local = os.environ.get(CLUSTER) == "local"
        if importlib.util.find_spec("submitit") is None:
            raise RuntimeError('--on slurm needs the extra: pip install "bsvi[slurm]"')
        lacking = [program for program in ("sbatch", "squeue", "srun") if shutil.which(program) is None]
        if lacking and not self.local:
            raise RuntimeError(f"there is no {lacking[0]} on this machine; --on slurm must be started where SLURM is")

    def executor(self) -> Any:
        """submitit's, with all settings."""
        import submitit

        os.environ["SUBMITIT_PREEMPT_SIGNAL"] = (
            "USR1"  # for the jobs; submitit's own is SIGUSR2, on which training dies
        )
        s = self.settings
        own = {"requeue": True, "signal": f"USR1@{s.signal_seconds}"}
        found = submitit.AutoExecutor(
            s.folder / "logs", cluster="local" if self.local else "slurm", slurm_max_num_timeout=REQUEUES
        )
        found.update_parameters(
            name=s.name,
            timeout_min=s.minutes,
            cpus_per_task=s.cpus,
            slurm_partition=s.partition,
            slurm_gpus_per_node=s.gpus or None,
            slurm_array_parallelism=s.at_once,
            slurm_setup=["export SUBMITIT_PREEMPT_SIGNAL=USR1"],
            slurm_additional_parameters={**s.options, **own},
        )
        return found

    def submit(self, jobs: list[Job]) -> dict[str, str]:
        """Job ids by run, of all that is not finished; only what has no job in the queue gets a new one."""
        with self._ids() as ids:
            queued = self.states()
            wanted = [job for job in jobs if job.next_words() is not None]
            new = [job for job in wanted if ids.get(job.folder.name) not in queued]
            if new:
                for job in new:
                    (job.folder / "errors.txt").unlink(missing_ok=True)
                executor, place, patience = self.executor(), JobEnvironment.here(), 0.8 * self.settings.signal_seconds
                with shorten_errors(), executor.batch():
                    submitted = [executor.submit(OneRun(strip_process(job), place, patience)) for job in new]
                ids.update({job.folder.name: str(one.job_id) for job, one in zip(new, submitted, strict=True)})
            return {job.folder.name: ids[job.folder.name] for job in wanted}

    @contextlib.contextmanager
    def _ids(self) -> Iterator[dict[str, str]]:
        """The file of job ids, kept from other sweeps while it is open, and written at the end."""
        path = self.settings.folder / "jobs.json"
        with os.fdopen(open_to_write(self.settings.folder / "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                ids = read_json(path) if path.exists() else {}
                ids = {str(name): str(number) for name, number in ids.items()}
            except (ValueError, AttributeError):
                raise ValueError(f"{path} is damaged; look with squeue that no job runs, and remove it") from None
            yield ids
            write_atomically(path, (json.dumps(ids, indent=1) + "\n").encode())

    def states(self) -> dict[str, str]:
        """The state of each of our jobs that waits or runs, by its id."""
        if self.local:
            return {path.name: "RUNNING" for path in Path("/proc").glob("[0-9]*") if is_local_job(path)}
        words = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i %T"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            raise OSError("squeue does not answer; the jobs are where they were, try again later") from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise OSError(f"squeue failed ({reason}); the jobs are where they were, try again later")
        return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line.strip())

    def follow(
        self, jobs: list[Job], ids: dict[str, str], show: Callable[[list[Job]], None], look_every: float = 10.0
    ) -> None:
        """Show the jobs until all have ended. SLURM is asked at most every ``look_every`` seconds, the folders always."""
        states, looked, gone = self.states(), Stopwatch(), dict[str, Stopwatch]()
        look_every, grace = (0.5, 2.0) if self.local else (look_every, self.settings.grace)
        while True:
            if looked.seconds > look_every:
                with contextlib.suppress(OSError):  # SLURM is busy: nothing is concluded from that
                    states = self.states()
                looked = Stopwatch()
            for job in jobs:
                if job.stage in ENDED or job.next_words() is None:
                    continue
                state = states.get(ids[job.folder.name])
                if state is not None:
                    gone.pop(job.folder.name, None)
                    job.stage = "waiting" if state != "RUNNING" else job.stage
                elif gone.setdefault(job.folder.name, Stopwatch()).seconds > grace:
                    job.stage, job.problem = "failed", self._why(job, ids[job.folder.name])
            show(jobs)
            if all(job.stage in ENDED for job in jobs):
                return
            time.sleep(0.5)

    def _why(self, job: Job, number: str) -> str:
        log = self.settings.folder / "logs" / f"{number}_0_log.err"
        return read_complaint(job.folder) or f"its SLURM job {number} ended before it was finished; {log} may tell why"


def is_local_job(process: Path) -> bool:
    """Whether this is a job of submitit's local executor."""
    try:
        return b"submitit.local._local" in (process / "cmdline").read_bytes()
    except OSError:
        return False


@contextlib.contextmanager
def shorten_errors() -> Iterator[None]:
    """What sbatch complains of, as one line; submitit prints it too."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line.lower()), lines[0] if lines else type(error).__name__)
        raise RuntimeError(f"SLURM did not take the jobs: {told}") from None
