"""How a run is asked to stop: by signals, which it obeys when the step in hand is done."""

import signal
from types import FrameType
from typing import Any


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 end the loop after the step in hand; a second one ends the process at once."""

    NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")

    def __init__(self) -> None:
        self.received = ""
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        try:
            for name in self.NAMES:
                number = getattr(signal, name)
                self.before[number] = signal.signal(number, self._note)
        except ValueError:
            self.before.clear()  # not in the main thread: the owner of that thread decides
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        for each in self.before:
            signal.signal(each, signal.SIG_DFL)  # the second: nothing on disk is ever half written
