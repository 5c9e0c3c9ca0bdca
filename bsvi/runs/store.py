"""A file of finished examples that survives a kill: each batch is one checksummed line, appended and synced.

The first line says what was asked (k, seed, the model's hash, ...); a file of another question is refused. A last line
cut by a kill is removed, and its batch is done again; damage anywhere else is an error, never a silently smaller table.

Several processes write one file each, named by ``share_path``. Each knows what all the files hold; the one who opens the file
itself, when the others have ended, takes theirs into it. An example that is in two files counts once.
"""

import json
import os
import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bsvi.system.files import flush, open_folder_of, open_to_write, printable
from bsvi.system.reading import parse_json

try:
    import fcntl
except ImportError:  # not a Unix: two processes on one file are then not noticed
    fcntl = None  # type: ignore[assignment]

LIMIT = 1 << 30  # bytes of a store: some million images
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
            self.file: BinaryIO = os.fdopen(open_to_write(self.path, os.O_CREAT | os.O_APPEND), "a+b")
        except OSError as error:
            raise OSError(f"cannot write the store {self.path}: {error.strerror}; name another file") from None
        try:
            self._claim(self.file, self.path)
            self._read(question)
            self._read_others(question)
        except BaseException:
            self.file.close()
            raise

    def append(self, part: Part, crc: list[int], seconds: float, notes: set[str]) -> None:
        """Keep one batch; when this returns it is on the disk."""
        if self.parts and self.parts[0][1].keys() != part[1].keys():
            raise ValueError(f"{self.path} is damaged (it holds other numbers); remove it and evaluate again")
        columns = {name: column.tolist() for name, column in part[1].items()}
        entry = {"ids": part[0].tolist(), "crc": crc, "values": columns, "seconds": seconds, "notes": sorted(notes)}
        self._write(entry)
        self._add(entry)

    def close(self) -> None:
        self.file.close()

    @staticmethod
    def _claim(file: BinaryIO, path: Path) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OSError(f"another process is writing {path}; wait for it, or name another file") from None

    def _read(self, question: dict[str, Any]) -> None:
        self.file.seek(0)
        content = _content(self.file, self.path)
        entries, good = self._entries(content, self.path)
        if entries:
            self._compare(entries[0], question, self.path)
        for entry in entries[1:]:
            if (fresh := self._select_new(entry)) is not None:
                self._add(fresh)
        if good < len(content):
            self.file.truncate(good)
        if not entries:
            self._write(question)
            with open_folder_of(self.path) as folder:
                flush(folder)

    def _read_others(self, question: dict[str, Any]) -> None:
        """What the files of other shares hold; the owner of the whole takes it over and removes them."""
        base = _whole_path(self.path)
        whole = base == self.path
        others = [*base.parent.glob(f"{_glob(base.stem)}.share-*{_glob(base.suffix)}"), base]
        for path in sorted(path for path in others if path != self.path and path.exists()):
            with os.fdopen(open_to_write(path, 0), "r+b") as file:
                if whole or path == base:  # shares run beside each other, but not beside the whole
                    self._claim(file, path)
                entries, _ = self._entries(_content(file, path), path)
                if entries:
                    self._compare(entries[0], question, path)
                fresh = [entry for entry in map(self._select_new, entries[1:]) if entry is not None]
                for entry in fresh:
                    self._add(entry)
                if whole:
                    self._write(*fresh)
                    path.unlink()

    def _entries(self, content: bytes, path: Path) -> tuple[list[dict[str, Any]], int]:
        """The whole lines, and where they end: a last line that a kill cut, or that is being written, is left out."""
        entries: list[dict[str, Any]] = []
        good = 0
        while good < len(content):
            end = content.find(b"\n", good) + 1 or len(content)
            entry = _decode(content[good:end])
            if entry is None and end == len(content):
                break
            names = entries[1]["values"].keys() if len(entries) > 1 else None
            if entry is None or (entries and not _is_part(entry, names)):
                raise ValueError(f"{path} is damaged at byte {good}; remove it and evaluate again")
            entries.append(entry)
            good = end
        return entries, good

    def _select_new(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        """The part of an entry whose examples are not there yet."""
        rows = [i for i, name in enumerate(entry["ids"]) if name not in self.crc]
        if not rows:
            return None
        picked = {name: [entry[name][i] for i in rows] for name in ("ids", "crc")}
        values = {name: [column[i] for i in rows] for name, column in entry["values"].items()}
        return {**entry, **picked, "values": values}

    def _compare(self, header: dict[str, Any], question: dict[str, Any], path: Path) -> None:
        asked = json.loads(json.dumps(question))
        if "code" in asked and "code" not in header and header.get("model") == asked.get("model"):
            raise ValueError(
                f"{path} does not say what the code of its model was (an older version made it), so it may hold another "
                "model's numbers; remove it or name another file"
            )
        then, now = _flat(header), _flat(asked)
        for name in [*now, *then]:
            if then.get(name) != now.get(name):
                hint = ", or give its object a store_key if this decides no number" if name.startswith("code.") else ""
                raise ValueError(
                    f"{path} holds another evaluation ({name} was {_short(then.get(name))}, "
                    f"now {_short(now.get(name))}); remove it or name another file{hint}"
                )

    def _add(self, entry: dict[str, Any]) -> None:
        values = {name: np.array(column, np.float64) for name, column in entry["values"].items()}
        self.parts.append((np.array(entry["ids"], np.int64), values))
        self.crc.update(zip(entry["ids"], entry["crc"], strict=True))
        self.seconds += entry["seconds"]
        self.notes.update(map(printable, entry["notes"]))

    def _write(self, *entries: dict[str, Any]) -> None:
        try:
            self.file.write(b"".join(map(_encode, entries)))
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(f"cannot write the store {self.path}: {error.strerror}; what it holds is kept") from None


def share_path(path: str | os.PathLike[str], number: int, count: int) -> Path:
    """Where process ``number`` (from 1) of ``count`` keeps what it has finished of the evaluation in ``path``.

    >>> share_path("scores.jsonl", 1, 3).name
    'scores.share-1-of-3.jsonl'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}.share-{number}-of-{count}{path.suffix}")


def _whole_path(path: Path) -> Path:
    return path.with_name(re.sub(r"\.share-\d+-of-\d+(?=(\.[^.]*)?$)", "", path.name))


def _glob(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _encode(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":")).encode()  # Python prints a float64 so that it reads back the same
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> dict[str, Any] | None:
    """The entry of a line, or None if the line is not whole."""
    if not line.endswith(b"\n") or len(line) < 10 or line[:8] != b"%08x" % zlib.crc32(line[9:-1]):
        return None
    try:
        entry = parse_json(line[9:-1], nan=True)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _is_part(entry: dict[str, Any], names: Collection[str] | None) -> bool:
    """Whether these are examples with their numbers: the columns of the entry before, each as long as the ids."""
    ids, crc, values = (entry.get(name, ()) for name in ("ids", "crc", "values"))
    if not isinstance(ids, list) or not isinstance(values, dict) or names not in (None, values.keys()):
        return False
    whole = _all(ids, int) and _all(crc, int) and len(crc) == len({*ids}) == len(ids)
    whole = whole and all(-(1 << 63) <= name < 1 << 63 for name in ids)
    numbers = all(_all(column, int | float) and len(column) == len(ids) for column in values.values())
    return whole and numbers and _all([entry.get("seconds")], int | float) and _all(entry.get("notes"), str)


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


def _content(file: BinaryIO, path: Path) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size > LIMIT:
        raise ValueError(f"{path} has {size:,} bytes, where a store has no more than {LIMIT:,}; remove it")
    return file.read(size)


def _flat(question: dict[str, Any]) -> dict[str, Any]:
    """The question with names like ``svi.lr`` in place of a dictionary within it."""
    groups = (
        {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        for name, value in question.items()
    )
    return {name: value for group in groups for name, value in group.items()}


def _short(value: Any) -> str:
    return printable(value, 40)
