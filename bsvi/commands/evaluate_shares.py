"""Evaluation by several processes: each takes its share of the images and keeps it in a file of its own.

Shares are every N-th batch, so that what is left after a kill is spread evenly over any other number of processes, too.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from bsvi.runs.store import LIMIT, share_path
from bsvi.system.files import read_bytes
from bsvi.system.runtime import count_cores
from bsvi.training.team import Rank, end_with_parent

PATIENCE = timedelta(days=7)  # the first process may have to wait for the slowest share


def find_share(text: str | None, processes: int, place: Rank | None) -> tuple[int, int] | None:
    """The share (number from 1, count) that this process has to do, if it has one."""
    if processes < 1:
        raise ValueError(f"--processes must be at least 1, got {processes}")
    if (text is not None) + (processes > 1) + (place is not None) > 1:
        raise ValueError("--share, --processes and torchrun are three ways to the same; use one of them")
    if place is not None:
        return place.rank + 1, place.size
    if text is None:
        return None
    try:
        number, count = (int(part) for part in text.split("/"))
        if not 1 <= number <= count:
            raise ValueError
    except ValueError:
        raise ValueError(f"--share takes I/N, such as 2/3 for the second of three parts, got {text!r}") from None
    return number, count


def share_batches(split: Any, batch_size: int, share: tuple[int, int], device: Any) -> list[Any] | Iterator[Any]:
    """This share's batches: of a small split smaller ones, so that each process has some; none where there is nothing left."""
    from bsvi.data import evaluation_batches

    number, count = share
    size = min(batch_size, max(1, len(split) // count))
    if number > math.ceil(len(split) / size):
        return []
    return islice(evaluation_batches(split, batch_size=size, device=device), number - 1, None, count)


@contextlib.contextmanager
def wait_for_all(place: Rank | None) -> Iterator[Callable[[], object]]:
    """A function that returns when all processes of a torchrun have called it; nothing to wait for without one."""
    if place is None:
        yield lambda: None
        return
    from bsvi.training.distributed import join_processes

    with join_processes(place, "cpu", PATIENCE) as team:  # they exchange no tensors, so gloo will do for GPUs too
        yield lambda: team.sum_over_processes(0.0)


def run_shares(words: list[str], arguments: argparse.Namespace, store: Path, images: int, bar: Any) -> None:
    """Do all shares in processes of their own; one that fails ends the others, and what they have finished is kept."""
    count = arguments.processes
    threads = arguments.threads or max(1, count_cores() // count)
    common = [
        *words,
        "--processes",
        "1",
        "--threads",
        str(threads),
        "--quiet",
        "--batch-size",
        str(arguments.batch_size),
    ]
    size = min(arguments.batch_size, max(1, images // count))
    with contextlib.ExitStack() as held:
        said = [held.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        running = [start_share([*common, "--share", f"{i + 1}/{count}"], i, said[i]) for i in range(count)]
        held.callback(stop_shares, running)
        while any(process.poll() is None for process in running):
            check_running(running, said)
            bar.update(min(images, size * count_finished_batches(store, count)))
            time.sleep(0.2)
        check_running(running, said)


def start_share(words: list[str], local: int, said: Any) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "bsvi", "evaluate", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        env={**os.environ, "LOCAL_RANK": str(local)},  # each its own GPU, where there are some
        preexec_fn=lambda: end_with_parent(signal.SIGTERM),
    )


def check_running(running: "list[subprocess.Popen[bytes]]", said: list[Any]) -> None:
    for number, (process, errors) in enumerate(zip(running, said, strict=True), 1):
        code = process.poll()
        if code:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            reason = lines[-1].removeprefix("bsvi evaluate: ") if lines else reason
            raise RuntimeError(
                f"process {number} of {len(running)} failed ({reason}); finished images are kept, run the same command again"
            )


def stop_shares(running: "list[subprocess.Popen[bytes]]") -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        process.wait()


def count_finished_batches(store: Path, count: int) -> int:
    """How many batches the shares have finished, by the lines of their files; the first line is the question."""
    lines = 0
    for number in range(1, count + 1):
        with contextlib.suppress(OSError):
            lines += max(0, read_bytes(share_path(store, number, count), LIMIT).count(b"\n") - 1)
    return lines
