"""Time: the clocks, a stopwatch that can be taken up again, and durations in words. Nobody else reads a clock."""

import time
from collections.abc import Callable
from typing import Any, Literal

ClockName = Literal["wall", "cpu"]  # what --clock chooses
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def choose_clock(device: Any) -> Callable[[], float]:
    """The clock of work on a device: CPU time, which others on the machine hardly disturb; on a GPU wall clock."""
    return CLOCKS["cpu" if device.type == "cpu" else "wall"]


class Stopwatch:
    """Seconds since it was made, and those ``before``.

    Example:
        >>> Stopwatch(60.0).seconds >= 60.0
        True
    """

    def __init__(self, before: float = 0.0) -> None:
        self.before, self.start = before, time.perf_counter()

    @property
    def here(self) -> float:
        """Seconds since it was made, without those before."""
        return time.perf_counter() - self.start

    @property
    def seconds(self) -> float:
        """Seconds since it was made, with those before."""
        return self.before + self.here


def format_duration(seconds: float) -> str:
    """Seconds, minutes or hours, with two digits or all that stand before the point.

    Example:
        >>> [format_duration(seconds) for seconds in (0.31, 36.2, 125.0, 5400.0, 360_000.0)]
        ['0.31 s', '36 s', '2.1 min', '1.5 h', '100 h']
    """
    unit, size = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 5400 else ("h", 3600)
    value = seconds / size
    return f"{value:.2g} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"
