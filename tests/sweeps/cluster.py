"""A real Ray cluster of two nodes on this machine; as a program: it lives until its standard input is closed.

Prints one line of JSON: the address, and the process id of the second node's raylet.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    quick = {  # a dead node is noticed within seconds, not within half a minute
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 5000,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": quick})
    second = cluster.add_node(**node)
    raylet = second.all_processes["raylet"][0].process.pid
    print(json.dumps({"address": cluster.address, "raylet": raylet}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


@contextlib.contextmanager
def sweeps(folder, **environment):
    """Starts ``bsvi sweep digits`` in sessions of their own, their words in ``process.said``; afterwards none of it is left."""
    started = []

    def start(*words):
        said = folder / f"said-{len(started)}.txt"  # not a pipe: their children would keep it open
        with open(said, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "bsvi", "sweep", "digits", *map(str, words)],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                # tests that run in the background of a shell ignore SIGINT, and so would their children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        process.said = said
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            kill_all(session(process.pid))
            process.wait()


def processes() -> dict[int, tuple[int, int]]:
    """Parent and session of every process that is not a zombie."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z":
            found[int(path.name)] = (int(parent), int(session))
    return found


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents = {child: parent for child, (parent, _) in processes().items()}
    found = [pid] if pid in parents else []
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def session(leader: int) -> list[int]:
    """All processes of a session, wherever they hang now."""
    return [pid for pid, (_, session_) in processes().items() if session_ == leader]


def kill_all(pids: list[int]) -> None:
    """As a power cut does: nobody sees the others die first."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def wait_for(what, seconds: float = 120.0, every: float = 0.05):
    """What ``what()`` returns once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


if __name__ == "__main__":
    main()
