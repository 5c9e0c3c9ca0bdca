"""One owner per run folder: a lock that the kernel frees when its owner dies, however it dies."""

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path


class RunError(RuntimeError):
    """Something about a run folder that the user can act on; one line."""


class Lock:
    """``take`` the folder for this process, or RunError at once if a living process has it; ``release`` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def take(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be used ({error.strerror}); choose another folder with --out"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise RunError(
                f"{self.folder} is in use by {self._owner()}; wait for it, stop it, or choose another --out"
            ) from None
        self._descriptor = lock
        with contextlib.suppress(OSError):  # on a full disk: the lock holds without the owner's name
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)  # the file stays: removing it would let two owners hold two files of one name
            self._descriptor = None

    def _owner(self) -> str:
        for _ in range(20):  # the owner may have locked the file a moment before it writes its name
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                owner = json.loads((self.folder / "lock").read_bytes())
                return f"process {owner['pid']} on {owner['host']}"
            time.sleep(0.02)
        return "another process"
