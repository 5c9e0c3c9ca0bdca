"""A file of finished examples that survives a kill: each batch is one checksummed line, appended and synced.

The first line says what was asked (k, seed, the model's hash, ...); a file of another question is refused. A last line
cut by a kill is removed, and its batch is done again; damage anywhere else is an error, never a silently smaller table.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

try:
    import fcntl
except ImportError:  # not a Unix: two processes on one file are then not noticed
    fcntl = None  # type: ignore[assignment]

Part = tuple[np.ndarray, dict[str, np.ndarray]]  # ids of some examples, and one column per number


class Record:
    """The finished examples of one question in ``path``.

    ``crc`` maps an example's id to the checksum of its input, so that changed data is noticed; ``parts`` has the values.
    """

    def __init__(self, path: str | os.PathLike[str], question: dict[str, Any]) -> None:
        self.path = Path(path)
        self.crc: dict[int, int] = {}
        self.parts: list[Part] = []
        self.seconds = 0.0
        self.notes: set[str] = set()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 (kept open for appending)
        except OSError as error:
            raise OSError(f"cannot write the store {self.path}: {error.strerror}; name another file") from None
        try:
            self._lock()
            self._read(question)
        except BaseException:
            self.file.close()
            raise

    def append(self, part: Part, crc: list[int], seconds: float, notes: set[str]) -> None:
        """Keep one batch; when this returns it is on the disk."""
        columns = {name: column.tolist() for name, column in part[1].items()}
        entry = {"ids": part[0].tolist(), "crc": crc, "values": columns, "seconds": seconds, "notes": sorted(notes)}
        self._write(entry)
        self._take(entry)

    def close(self) -> None:
        self.file.close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OSError(f"another process is writing {self.path}; wait for it, or name another file") from None

    def _read(self, question: dict[str, Any]) -> None:
        self.file.seek(0)
        content = self.file.read()
        good, header = 0, None
        while good < len(content):
            end = content.find(b"\n", good) + 1 or len(content)
            entry = _decode(content[good:end])
            if entry is None:
                if end < len(content):
                    raise ValueError(f"{self.path} is damaged at byte {good}; remove it and evaluate again")
                break  # the line that a kill cut
            if header is None:
                header = entry
                self._compare(header, question)
            else:
                self._take(entry)
            good = end
        if good < len(content):
            self.file.truncate(good)
        if header is None:
            self._write(question)
            _sync_folder(self.path.parent)

    def _compare(self, header: dict[str, Any], question: dict[str, Any]) -> None:
        asked = json.loads(json.dumps(question))
        for name in [*asked, *header]:
            if header.get(name) != asked.get(name):
                raise ValueError(
                    f"{self.path} holds another evaluation ({name} was {_short(header.get(name))}, "
                    f"now {_short(asked.get(name))}); remove it or name another file"
                )

    def _take(self, entry: dict[str, Any]) -> None:
        values = {name: np.array(column, np.float64) for name, column in entry["values"].items()}
        self.parts.append((np.array(entry["ids"], np.int64), values))
        self.crc.update(zip(entry["ids"], entry["crc"], strict=True))
        self.seconds += entry["seconds"]
        self.notes.update(entry["notes"])

    def _write(self, entry: dict[str, Any]) -> None:
        try:
            self.file.write(_encode(entry))
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(f"cannot write the store {self.path}: {error.strerror}; what it holds is kept") from None


def _encode(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()  # Python prints a float64 so that it reads back the same
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> dict[str, Any] | None:
    """The entry of a line, or None if the line is not whole."""
    if not line.endswith(b"\n") or len(line) < 10 or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
        return None
    return json.loads(line[9:-1])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
