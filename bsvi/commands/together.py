"""How a training process ends, alone or as one of several that torchrun has started: by a signal, or with one clear line."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from bsvi.system.errors import FailedElsewhere, NotFinite, RunError
from bsvi.system.signals import stop_signals
from bsvi.training.team import Rank, Team

SIGNAL_CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 0, "SIGHUP": 129}
GRACE = 10.0  # seconds that the first of several processes has to tell why all end


class StoppedAtStart(BaseException):
    """A signal at start-up, when there is nothing to save; while training goes on, bsvi.system.signals takes them."""


@contextlib.contextmanager
def stop_at_once(place: Rank | None) -> Iterator[None]:
    """Within this context the signals that end a run raise Stopped.

    One of several processes just dies of SIGTERM and SIGINT: it may be waiting for the others, deep inside a library.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedAtStart(signal.Signals(number).name)

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: the owner of that thread decides
        for name, number in stop_signals().items():
            action = stop if place is None or name == "SIGUSR1" else signal.SIG_DFL
            before[number] = signal.signal(number, action)
    try:
        yield
    finally:
        for number, handler in before.items() if place is None else ():  # one of several is about to end
            signal.signal(number, handler)


@contextlib.contextmanager
def speak_once(place: Rank | None) -> Iterator[None]:
    """Of several processes the first one tells what all have met; the others end with the same code, silently, after it.

    torchrun ends all as soon as it sees one that has ended: were that a silent one, nobody would tell the user.
    """
    try:
        yield
    except (ValueError, RuntimeError, ArithmeticError, SystemExit) as error:
        shared = isinstance(error, FailedElsewhere | NotFinite | RunError | SystemExit)
        if place is None or place.rank == 0 or not shared:
            raise
        code = error.code if isinstance(error, SystemExit) else 3 if isinstance(error, NotFinite) else 1
        if code:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(GRACE)  # until SIGTERM comes
        raise SystemExit(code) from None


@contextlib.contextmanager
def shield_message(team: Team) -> Iterator[None]:
    """What comes out of this context is told even if torchrun, which has seen another process end, sends SIGTERM meanwhile."""
    try:
        yield
    finally:
        if team.size > 1:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is about to end anyway


@contextlib.contextmanager
def silence_others(place: Rank | None) -> Iterator[None]:
    """Within this context only the first of several processes prints."""
    if place is None or place.rank == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        yield


def join_team(place: Rank | None, device: str) -> contextlib.AbstractContextManager[Team]:
    """This process alone, or together with the others that torchrun has started."""
    if place is None:
        return contextlib.nullcontext(Team())
    from bsvi.training import distributed

    return distributed.join_processes(place, device)
