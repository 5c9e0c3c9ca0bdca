"""A sweep on Ray: one task per run with its resources, sent again when its worker or its node dies."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bsvi.sweeps.attempt import TRIES, Attempt, JobEnvironment, strip_process
from bsvi.sweeps.jobs import Job
from bsvi.sweeps.ray_connection import check_port, give_up_after, import_ray, silence_stderr
from bsvi.system.clock import Stopwatch
from bsvi.system.files import read_bytes, write_atomically

OBJECT_STORE = 80 * 2**20  # bytes: nothing goes through it, and Ray's own share is a third of the memory

NODE = "node.txt"  # in the run folder: where it is done


@dataclass(frozen=True)
class RaySettings:
    address: str | None = None  # HOST:PORT of ``ray start --head``, or auto; None: a Ray of our own on this machine
    cpus: float = 1.0  # of one run
    gpus: float = 0.0  # of one run; may be a fraction
    at_once: int | None = None  # runs at most; None: as many as the cluster has room for
    answer_within: float = 20.0  # seconds that a cluster has to answer


class RayEngine:
    """``with RayEngine(settings) as engine: engine.run(jobs, display)``; connected inside, and all of it gone after."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self.folder: str | None = None  # of our own Ray's sockets and logs

    def __enter__(self) -> "RayEngine":
        ray, address = import_ray(), self.settings.address
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address is None:
                # a worker that dies kills its children, by Ray's default; ours are told to save and leave instead
                os.environ.setdefault("RAY_kill_child_processes_on_worker_exit", "false")
                long = len(tempfile.gettempdir()) > 30  # a socket's path may have 107 characters
                self.folder = tempfile.mkdtemp(prefix="bsvi-", dir="/tmp" if long else None)
                with silence_stderr():
                    ray.init(
                        address="local",
                        include_dashboard=False,
                        object_store_memory=OBJECT_STORE,
                        _temp_dir=self.folder,
                        **quiet,
                    )
            else:
                check_port(address)
                with give_up_after(address, self.settings.answer_within), silence_stderr():
                    ray.init(address=address, **quiet)
            self._check_room(ray)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        ray = sys.modules.get("ray")
        if ray is not None:
            with silence_stderr():
                ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def describe(self) -> str:
        """What there is to run on, in a few words."""
        import ray

        nodes = [node for node in ray.nodes() if node["Alive"]]
        total = ray.cluster_resources()
        where = self.settings.address or "this machine"
        size = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}, {total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs"
        return f"Ray on {where} ({size}); each run takes {self.settings.cpus:g} CPUs and {self.settings.gpus:g} GPUs"

    def _check_room(self, ray: Any) -> None:
        """Refuse what no node could ever take; a cluster that grows may get such a node, our own Ray never."""
        want = {"CPU": self.settings.cpus, "GPU": self.settings.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(node.get(kind, 0) >= count for kind, count in want.items()) for node in nodes):
            return
        best = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes[:4])
        line = f"no node has {want['CPU']:g} CPUs and {want['GPU']:g} GPUs for a run; there are nodes with {best}"
        if self.settings.address is None:
            raise ValueError(f"{line}; lower --cpus-per-run or --gpus-per-run")
        print(f"{line}; waiting for one to join", file=sys.stderr)

    def run(self, jobs: list[Job], show: Callable[[list[Job]], None], pause: float = 0.5) -> None:
        """Work through the jobs; one that fails by its own error does not stop the others, nor is it tried again.

        One whose worker or node dies is sent again and goes on from its checkpoint, unless that happened several times with
        nothing new saved. On an exception (Ctrl-C) every task is told to save and leave, and is waited for.
        """
        import ray

        task = ray.remote(num_cpus=self.settings.cpus, num_gpus=self.settings.gpus, max_retries=0)(run_attempt)
        place, waiting = JobEnvironment.here(self.settings.gpus), [job for job in jobs if job.next_words() is not None]
        deaths, running, looked = Deaths(waiting), dict[Any, Job](), Stopwatch()
        try:
            while waiting or running:
                while waiting and len(running) < (self.settings.at_once or len(jobs)):
                    job = waiting.pop(0)
                    for name in ("errors.txt", NODE):  # they are there again when the task has begun
                        (job.folder / name).unlink(missing_ok=True)
                    running[task.remote(strip_process(job), place)] = job
                ended, _ = ray.wait([*running], timeout=pause, fetch_local=False)
                for reference in ended:
                    job = running.pop(reference)
                    try:
                        job.stage, job.problem = ray.get(reference)
                        if job.stage == "stopped":
                            job.stop()
                    except ray.exceptions.RayTaskError as error:
                        job.stage, job.problem = "failed", str(error).strip().splitlines()[-1]
                    except ray.exceptions.RayError as error:
                        waiting[:0] = deaths.of(job, describe_cause(error))
                if looked.seconds > 2.0:  # Ray itself waits minutes for a machine that hangs
                    looked, gone = Stopwatch(), {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
                    for reference in [one for one, job in running.items() if find_node(job) in gone]:
                        ray.cancel(reference, force=True)
                        waiting[:0] = deaths.of(running.pop(reference), "its node died")
                for job in running.values():
                    if (job.folder / "errors.txt").exists():
                        job.next_words()  # says which stage it is in
                        job.stage = "evaluating" if job.stage == "done" else job.stage
                show(jobs)
        finally:
            for reference in running:
                ray.cancel(reference)  # KeyboardInterrupt in the task
            if running:
                ray.wait([*running], num_returns=len(running), timeout=90.0, fetch_local=False)


class Deaths:
    """Which jobs are sent again when what they ran on dies, and for how long."""

    def __init__(self, jobs: list[Job]) -> None:
        self.saved = {job.name: job.saved() for job in jobs}
        self.idle = dict.fromkeys(self.saved, 0)
        for job in jobs:
            job.stage = "waiting"

    def of(self, job: Job, why: str) -> list[Job]:
        """The job, if it is to be sent again."""
        before, self.saved[job.name] = self.saved[job.name], job.saved()
        self.idle[job.name] = 0 if self.saved[job.name] != before else self.idle[job.name] + 1
        if self.idle[job.name] == TRIES:
            job.stage, job.problem = "failed", f"{why}, {TRIES} times without anything new saved"
            return []
        job.stage, job.problem = "waiting", f"{why}; sent again, it goes on from what is saved"
        return [job]


def run_attempt(job: Job, place: JobEnvironment) -> tuple[str, str]:
    """In a worker: how the job has ended, and what went wrong or "". A worker that dies takes its process along."""
    import ray

    write_atomically(job.folder / NODE, ray.get_runtime_context().get_node_id().encode())
    try:
        made = Attempt(job, place)
        problem = made.run()
        return ("failed" if problem else "stopped" if made.limited else "done"), problem
    finally:
        (job.folder / NODE).unlink(missing_ok=True)


def find_node(job: Job) -> str:
    """The node that has a job, or "" before it has begun."""
    try:
        return read_bytes(job.folder / NODE, 1000).decode()
    except (OSError, ValueError):
        return ""


def describe_cause(error: Exception) -> str:
    from ray import exceptions

    known = {
        exceptions.NodeDiedError: "its node died",
        exceptions.WorkerCrashedError: "its worker died",
        exceptions.OutOfMemoryError: "its node ran out of memory",
    }
    return next(
        (words for kind, words in known.items() if isinstance(error, kind)), f"Ray gave it up ({type(error).__name__})"
    )
