"""How a run is asked to stop: by signals, which it obeys when the step in hand is done."""

import _thread
import ctypes
import signal
import threading
import time
from types import FrameType
from typing import Any

from bsvi.system.clock import Stopwatch

ECHO = 1.0  # seconds within which further signals say what the first one has said


STOPS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP")


def stop_signals() -> dict[str, int]:
    """The signals that ask this process to stop, by name; not SIGHUP where it is ignored, as ``nohup`` arranges."""
    numbers = {name: getattr(signal, name) for name in STOPS if hasattr(signal, name)}
    ignored = "SIGHUP" in numbers and signal.getsignal(numbers["SIGHUP"]) == signal.SIG_IGN
    return {name: number for name, number in numbers.items() if not (ignored and name == "SIGHUP")}


class Signals:
    """SIGTERM, SIGINT, SIGUSR1 and SIGHUP (a closed terminal) end the loop after the step in hand.

    One more, later than an echo, ends the process at once.

    One wish to stop may come as several signals within milliseconds: Linux tells a process once for each thread of a parent
    that was killed, ``timeout`` tells its child and then all of its group, and a batch system every process of a job.
    """

    def __init__(self) -> None:
        self.received = ""
        self.since = Stopwatch()
        self.before: dict[int, Any] = {}
        self.restoring = threading.Lock()

    def __enter__(self) -> "Signals":
        try:
            for number in stop_signals().values():
                self.before[number] = signal.signal(number, self._note)
        except ValueError:
            self.before.clear()  # not in the main thread: the owner of that thread decides
        return self

    def __exit__(self, *error: object) -> None:
        if self.received:
            time.sleep(max(0.0, ECHO - self.since.seconds))  # an echo must not meet the handlers from before
        with self.restoring:
            for number, handler in self.before.items():
                signal.signal(number, handler)
            self.before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return  # was on its way when the first one was noted
        self.received, self.since = signal.Signals(number).name, Stopwatch()
        for each in self.before:
            signal.signal(each, signal.SIG_IGN)
        _thread.start_new_thread(self._listen_again, ())  # a Thread's start takes a lock that this may have interrupted

    def _listen_again(self) -> None:
        """From now on a signal kills: nothing on disk is ever half written. Python lets only the main thread say that, which
        may be deep inside a library, waiting for a process that is gone; hence the C function."""
        time.sleep(ECHO)
        with self.restoring:
            for each in self.before:
                ctypes.CDLL(None).signal(each, ctypes.c_void_p(0))  # SIG_DFL
