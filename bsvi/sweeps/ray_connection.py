"""Reaching a Ray cluster without its noise, and with one line where there is none."""

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any


def import_ray() -> Any:
    """The module ray, told to send no usage statistics; one line where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise RuntimeError('--on ray needs the extra: pip install "bsvi[ray]"') from None
    return ray


def check_port(address: str) -> None:
    """Refuse an address that is none, or where nothing listens: Ray itself would try for two minutes."""
    if address == "auto":
        return
    found = re.fullmatch(r"\[?([^\[\]/\s]+)\]?:(\d{1,5})", address)
    if found is None:
        raise ValueError(f"--address takes HOST:PORT of ray start --head, or auto, got {address!r}")
    try:
        socket.create_connection((found[1], int(found[2])), timeout=5).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        line = f"no Ray at {address} ({reason}); start one with ray start --head, or leave --address out"
        raise ValueError(line) from None


@contextlib.contextmanager
def give_up_after(address: str, seconds: float) -> Iterator[None]:
    """Turn what Ray complains of into one line, and leave should it not answer at all: it cannot be interrupted."""
    line = f"no Ray cluster of this version answers at {address}; ray status --address {address} may tell more"
    out = os.dup(2)

    def leave() -> None:
        os.write(out, f"bsvi sweep: {line}\n".encode())
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise RuntimeError(f"{line} ({type(error).__name__}: {reason})") from None
    finally:
        timer.cancel()
        os.close(out)


@contextlib.contextmanager
def silence_stderr() -> Iterator[None]:
    """Within this context nothing is written to stderr, not even by Ray's C++."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
