"""Time: a stopwatch that can be taken up again."""

import time


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
