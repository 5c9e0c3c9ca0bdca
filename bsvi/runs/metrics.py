"""metrics.jsonl: lines that are appended, kept while the disk refuses them, and cut where training goes on from."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bsvi.runs.checkpoint import replace_nonfinite
from bsvi.runs.lock import RunError
from bsvi.system.files import open_to_read, open_to_write, write_all

MOST_METRICS = 1 << 30  # bytes of metrics.jsonl


class MetricsFile:
    """The file of one run; ``end`` is where its last whole line ends, ``warn`` takes what went wrong."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self.warn, self.end = path, warn, 0
        self._pending: list[bytes] = []  # lines that the disk did not take yet

    def append(self, line: dict[str, Any]) -> None:
        """Append one line; what the disk refuses is kept and written with the next line."""
        self._pending.append((json.dumps(replace_nonfinite(line)) + "\n").encode())
        self.flush()

    def begin_with(self, lines: bytes) -> None:
        """Take the lines of another run as the first ones; the next ``flush`` writes them."""
        self._pending = [lines]

    def flush(self, sync: bool = False) -> bool:
        """Write the pending lines; with ``sync`` to the disk itself, which only a checkpoint that counts them needs."""
        data = b"".join(self._pending)
        try:
            with os.fdopen(open_to_write(self.path, os.O_CREAT | os.O_APPEND), "ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if size > self.end:
                    file.truncate(self.end)  # a line that was cut off by a full disk or a kill
                elif size < self.end:
                    self.warn(f"metrics.jsonl lost {self.end - size} bytes to another program")
                    self.end = size
                write_all(file.fileno(), data)
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            self.warn(f"metrics.jsonl could not be written ({error.strerror}); training goes on, the lines are kept")
            return False
        self.end += len(data)
        self._pending.clear()
        return True

    def has(self, end: int) -> bool:
        """Whether the file has its first ``end`` bytes, up to the end of a line."""
        if end == 0:
            return True
        try:
            with open_to_read(self.path) as file:
                file.seek(end - 1)
                return file.read(1) == b"\n"
        except OSError:
            return False

    def read(self, end: int) -> bytes:
        """The first ``end`` bytes; none where there is no such file."""
        try:
            with open_to_read(self.path) as file:
                size = min(end, os.fstat(file.fileno()).st_size)
                if size > MOST_METRICS:
                    raise RunError(f"{self.path} has {size:,} bytes, where no more than {MOST_METRICS:,} are read")
                return file.read(size)
        except FileNotFoundError:
            return b""

    def cut(self, end: int) -> None:
        """Cut off what stands behind ``end``, or behind the last whole line before it."""
        if self.path.exists():
            self.end = end if self.has(end) else self.read(end).rfind(b"\n") + 1
            descriptor = open_to_write(self.path)
            try:
                os.truncate(descriptor, self.end)
            finally:
                os.close(descriptor)
