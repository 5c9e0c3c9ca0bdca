"""Time: a stopwatch that can be taken up again, the clocks to measure by, and durations as a person reads them."""

import time
from collections.abc import Callable
from typing import Literal

Clock = Literal["wall", "cpu"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Stopwatch:
    """Seconds since it was made, and those ``before``.

    >>> Stopwatch(60.0).seconds >= 60.0
    True
    """

    def __init__(self, before: float = 0.0) -> None:
        self.before, self.start = before, time.monotonic()

    @property
    def here(self) -> float:
        """Seconds since it was made, without those before."""
        return time.monotonic() - self.start

    @property
    def seconds(self) -> float:
        return self.before + self.here


def show_duration(seconds: float) -> str:
    """Seconds, minutes, hours and minutes, or days and hours.

    >>> [show_duration(seconds) for seconds in (12.0, 125.0, 7500.0, 360_000.0)]
    ['12 s', '2 min', '2 h 5 min', '4 days 4 h']
    """
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"
