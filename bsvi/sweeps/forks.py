"""Processes for the runs of a sweep that need not import torch again: forks of a starter that has imported it.

The imports take longer than training a small network. A starter does them once, then forks itself for one command at a time.
A fork is a process like any other: it fails or is killed alone. When the sweep dies its starters die with it, and their
forks save and leave.
"""

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from bsvi.system.files import open_to_write
from bsvi.training.team import end_with_parent

LOST = -signal.SIGKILL  # the code of a fork whose starter was killed: nobody was there to hear its own
PRELOADED = (
    "bsvi.experiments.build",
    "bsvi.experiments.trained",
    "bsvi.training.loop",
    "bsvi.training.watch",
    "bsvi.evaluation.evaluate",
    "bsvi.report",  # bsvi evaluate says which number to publish
    "tyro",
    "torch._dynamo",  # the first optimizer of a process imports it, which takes as long as torch itself
)
_OUTLIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a starter waits for its fork, which has a use for them


class Starter:
    """A process that has imported what commands need, and forks itself for one of them at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bsvi.sweeps.forks", str(os.getpid())],
            bufsize=0,  # a line that was read ahead would not be seen by select
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
        self.busy = False

    def start(self, folder: Path, words: list[str]) -> "Forked":
        """``bsvi WORDS`` as a fork, in this folder and with these variables; what it complains of is in errors.txt."""
        with os.fdopen(open_to_write(folder / "errors.txt"), "wb") as errors:
            errors.truncate(0)
        request = {"folder": os.getcwd(), "errors": str((folder / "errors.txt").absolute()), "words": words}
        line = json.dumps({**request, "environment": dict(os.environ)}).encode() + b"\n"
        self.busy = True
        with contextlib.suppress(OSError):  # it has died: no answer will come
            while line:
                line = line[self._pipe(self.process.stdin).write(line) :]
        return Forked(self)

    def receive(self) -> int | None:
        """The next number that it says: of the process, then its exit code; None if it has died."""
        line = self._pipe(self.process.stdout).readline()
        return int(line) if line.endswith(b"\n") else None

    def has_answer(self) -> bool:
        return bool(select.select([self._pipe(self.process.stdout)], [], [], 0)[0])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            self._pipe(stream).close()

    def _pipe(self, stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise ValueError("a starter has no pipe; make it with Starter()")
        return stream


class Forked:
    """A fork, with what a sweep asks of subprocess.Popen."""

    def __init__(self, starter: Starter) -> None:
        self.starter = starter
        self.pid: int | None = None  # until the starter has said it
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, below 0 the signal that killed it; None while it runs."""
        while self.returncode is None and self.starter.has_answer():
            self._listen()
        return self.returncode

    def wait(self) -> int:
        while self.returncode is None:
            self._listen()
        return self.returncode

    def terminate(self) -> None:
        """Have it save and leave; where the starter is still importing, there is nothing to save."""
        if self.poll() is None:
            if self.pid is None:
                self.starter.process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)

    def _listen(self) -> None:
        number = self.starter.receive()
        if number is not None and self.pid is None:
            self.pid = number
        else:
            self.returncode, self.starter.busy = LOST if number is None else number, False


class ForkPool:
    """Starters as they are needed; ``close`` ends them."""

    def __init__(self) -> None:
        self.starters: list[Starter] = []

    def start(self, folder: Path, words: list[str]) -> Forked:
        """``bsvi WORDS`` as a fork of a starter that has nothing to do, or of a new one."""
        idle = [starter for starter in self.starters if not starter.busy and starter.process.poll() is None]
        if not idle:
            idle = [Starter()]
            self.starters += idle
        return idle[0].start(folder, words)

    def close(self) -> None:
        for starter in self.starters:
            starter.close()


def serve(sweep: int) -> None:
    """Fork for every line of standard input; say the number of the process, then its exit code."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _OUTLIVED}
    for name in PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()  # forks need not look through all that was imported, again and again
    me = os.getpid()
    while os.getppid() == sweep and (line := sys.stdin.buffer.readline()):
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for number, handler in before.items():
                signal.signal(number, handler)
            run_fork(me, **request)
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def run_fork(starter: int, folder: str, errors: str, words: list[str], environment: dict[str, str]) -> NoReturn:
    """``bsvi WORDS`` in this process, which then ends: what it prints goes nowhere, what it complains of into a file."""
    code = 1
    try:
        end_with_parent(signal.SIGTERM)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, stream in enumerate((nothing, nothing, open_to_write(Path(errors)))):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["bsvi", *words]
        if os.getppid() == starter:
            runpy.run_module("bsvi", run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
