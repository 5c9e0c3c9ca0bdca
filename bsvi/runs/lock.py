"""One owner per run folder: a lock that the kernel frees when its owner dies, however it dies."""

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from bsvi.system.errors import RunError
from bsvi.system.files import UnsafeFile, open_to_write, printable, read_bytes
from bsvi.system.reading import parse_json


class Lock:
    """``take`` the folder for this process, or RunError at once if a living process has it; ``release`` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def take(self) -> None:
        try:
            lock = open_to_write(self.folder / "lock")
        except OSError as error:
            what = f"{self.folder / 'lock'} " if isinstance(error, UnsafeFile) else ""
            raise RunError(
                f"{self.folder} cannot be used ({what}{error.strerror}); choose another folder with --out"
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
                owner = parse_json(read_bytes(self.folder / "lock", 4096))
                return printable(f"process {owner['pid']} on {owner['host']}", 100)
            time.sleep(0.02)
        return "another process"
