"""A real torchrun with its ranks, to be watched and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
WORDS = [
    "digits",
    "--net.kind",
    "mlp",
    "--net.hidden",
    "16",
    "--net.latent",
    "4",
    "--svi.steps",
    "2",
    "--batch-size",
    "20",
    "--valid-every",
    "50",
    "--log-every",
    "10",
    "--save-every",
    "0.1",
    "--threads",
    "1",
    "--device",
    "cpu",
    "--compile",
    "off",
    "--logger",
    "none",
    "--quiet",
]
GONE = 10.0  # seconds after which no process may be left


class Torchrun:
    """``torchrun -m bsvi WORDS`` on ``size`` processes; everything it says is in ``FOLDER.output``."""

    def __init__(self, words, folder, size=2, restarts=0, machines=("--standalone",)):
        self.output = Path(f"{folder}.output")
        command = [sys.executable, "-m", "torch.distributed.run", *machines, f"--nproc-per-node={size}"]
        command += [f"--max-restarts={restarts}", "-m", "bsvi", *map(str, words)]
        with open(self.output, "ab") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        self.seen = set()

    def ranks(self):
        """The living ranks: number to process id."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if int((place / "stat").read_text().rsplit(")", 1)[1].split()[1]) != self.process.pid:
                    continue
                words = (place / "environ").read_bytes().split(b"\0")
                found[next(int(word[5:]) for word in words if word.startswith(b"RANK="))] = int(place.name)
            except (OSError, ValueError, StopIteration):
                continue
        self.seen |= {*found.values()}
        return found

    def wait_until(self, ready, seconds=180):
        """Until ``ready()``; False if torchrun ends before."""
        limit = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < limit, f"not ready: {self.said()}"
            time.sleep(0.01)
        return True

    def kill(self, rank):
        """SIGKILL to a rank, or to torchrun itself (None); returns whether there was one."""
        ranks = self.ranks()
        process = self.process.pid if rank is None else ranks.get(rank)
        if process is None or self.process.poll() is not None:
            return False
        os.kill(process, signal.SIGKILL)
        return True

    def seconds_until_gone(self, most=60.0):
        """Seconds from now until torchrun and all ranks that were seen have ended."""
        begin = time.monotonic()
        while self.process.poll() is None or any(alive(process) for process in self.seen):
            if time.monotonic() - begin > most:
                self.end()
                raise AssertionError(f"still there after {most} s: {self.said()}")
            time.sleep(0.01)
        return time.monotonic() - begin

    def wait(self, seconds=280):
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"still running after {seconds} s: {self.said()}") from None

    def end(self):
        for process in (self.process.pid, *self.ranks().values()):
            if alive(process):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def said(self):
        return self.output.read_text()[-4000:]


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def steps_saved(folder):
    return max((int(path.stem.split("-")[1]) for path in Path(folder).glob("state-*.ckpt")), default=0)
