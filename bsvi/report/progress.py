"""How far a sweep is whose runs are shown: how many of them are done, and the time left, as its sweep.json says."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bsvi.report.records import to_number
from bsvi.system.clock import format_duration
from bsvi.system.reading import read_json

QUIET_AFTER = 120.0  # seconds without a word, after which a sweep counts as ended


@dataclass(frozen=True)
class Progress:
    """Runs that are done, all of them, those that failed, and the seconds left (None: not known yet)."""

    done: int
    runs: int
    failed: int = 0
    seconds_left: float | None = None

    def describe(self) -> str:
        """The state in words.

        >>> Progress(12, 56, seconds_left=200.0).describe()
        '12 of 56 runs are done, about 3.3 min left'
        """
        text = f"{self.done} of {self.runs} runs {'is' if self.done == 1 else 'are'} done"
        text += f", {self.failed} failed" if self.failed else ""
        if self.seconds_left is None:
            return f"{text}; the time left is not known yet"
        return f"{text}, about {format_duration(max(self.seconds_left, 1.0))} left"


def read_progress(places: Iterable[Path], now: float | None = None) -> Progress | None:
    """All sweeps at or below the places together that are still at work; None where there is none.

    Sweeps at the same time share a machine, so that the longest decides.
    """
    now = time.time() if now is None else now
    found = {path.resolve(): path for place in places for path in [*Path(place).rglob("sweep.json")]}
    known = [one for path in found.values() if (one := _read(path, now)) is not None]
    if not known:
        return None
    left = [one.seconds_left for one in known if one.seconds_left is not None]
    return Progress(
        sum(one.done for one in known),
        sum(one.runs for one in known),
        sum(one.failed for one in known),
        max(left) if len(left) == len(known) else None,
    )


def _read(path: Path, now: float) -> Progress | None:
    try:
        about = read_json(path)
        numbers = {name: to_number(about.get(name)) for name in ("runs", "done", "failed", "stopped", "written")}
        left = to_number(about.get("seconds_left"))
    except (OSError, ValueError, AttributeError):
        return None
    runs, done, failed, stopped, written = (int(numbers[name] or 0) for name in numbers)
    age = now - written
    if not -QUIET_AFTER < age < QUIET_AFTER or done + failed + stopped >= runs:
        return None
    return Progress(done, runs, failed, None if left is None else max(0.0, left - max(age, 0.0)))
