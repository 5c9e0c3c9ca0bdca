"""Limits of time that hold on slow machines too: each is a ratio to work of the same kind, measured in the same minute."""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence


def cpu_seconds(words: Sequence[str], times: int = 3) -> float:
    """The least CPU time of a command over a few calls: what other work on the machine takes is not counted."""
    seconds = []
    for _ in range(times):
        before = os.times()
        subprocess.run(words, capture_output=True, check=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds)


@functools.cache
def slowness() -> float:
    """How much slower this machine is than a quiet one of 2024, which imports numpy in 0.14 s of CPU time; at least 1."""
    return max(1.0, cpu_seconds([sys.executable, "-c", "import numpy"]) / 0.14)
