"""Results of several questions side by side in one run folder; ``scores.json`` and ``gap.json`` hold the best of them.

Every result has files of its own, named by what was asked: ``evaluation-test-step1000-k500-n400-1a2b3c4d.json`` and ``.npz``.
The best is the one of the present model, then of the most images, then of the largest k. A smaller one never takes its place.
"""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bsvi.runs.checkpoint import replace_nonfinite
from bsvi.system.files import open_folder_of, printable, read_bytes, write_atomically
from bsvi.system.reading import Damaged, read_json

LIMIT = 1 << 30  # bytes of a file of scores: those of millions of images

Entry = dict[str, Any]


def keep_scores(folder: Path, split: str, entry: Entry, arrays: bytes) -> tuple[Path, Entry]:
    """Keep one evaluation; returns its file, and the best entry of this split, which scores.json now has.

    Numbers of AIS, of further estimators and of a certificate that the same result had already, of as many images or more, stay.
    """
    with _alone(folder):
        return _keep_scores(folder, split, entry, arrays)


def _keep_scores(folder: Path, split: str, entry: Entry, arrays: bytes) -> tuple[Path, Entry]:
    own = folder / make_name("evaluation", split, entry)
    earlier = _read_if_whole(own)
    entry = _with_earlier(entry, earlier, ("ais", "certificate"))
    known_before, asked = earlier.get("estimates"), entry.get("estimates")
    if isinstance(known_before, dict):
        asked = asked if isinstance(asked, dict) else {}
        entry = {**entry, "estimates": _with_earlier(asked, known_before, tuple(known_before))}
    _write(own, entry)
    write_atomically(own.with_suffix(".npz"), arrays)
    all_splits = read_entry(folder / "scores.json")
    known = all_splits.get(split)
    if isinstance(known, dict):
        before = folder / make_name("evaluation", split, known)
        if before != own and make_order_key(known, entry) >= make_order_key(entry, entry):
            return own, known
        if not before.exists():  # a result of an earlier version, which had one name for all
            _write(before, known)
            _copy(folder / f"scores-{split}.npz", before.with_suffix(".npz"))
    write_atomically(folder / f"scores-{split}.npz", arrays)
    _write(folder / "scores.json", {**all_splits, split: entry})
    return own, entry


def _with_earlier(entry: Entry, earlier: Entry, names: tuple[str, ...]) -> Entry:
    """The entry with those parts of an earlier one that are of as many images or more."""
    parts = {name: part for name in names if isinstance(part := earlier.get(name), dict)}
    kept = {name: part for name, part in parts.items() if _count(part, "images") >= _count(entry.get(name), "images")}
    return {**entry, **kept}


def keep_gap(folder: Path, entry: Entry) -> tuple[Path, Entry]:
    """Keep one ``bsvi gap`` of the test images; returns its file, and the best entry, which gap.json now has."""
    with _alone(folder):
        return _keep_gap(folder, entry)


def _keep_gap(folder: Path, entry: Entry) -> tuple[Path, Entry]:
    own, best = folder / make_name("gap", "test", entry), folder / "gap.json"
    _write(own, entry)
    known = read_entry(best)
    if known:
        before = folder / make_name("gap", "test", known)
        if before != own and make_order_key(known, entry) >= make_order_key(entry, entry):
            return own, known
        if not before.exists():
            _write(before, known)
    _write(best, entry)
    return own, entry


def read_entries(folder: Path, split: str = "test") -> Iterator[Entry]:
    """Every evaluation of a split in the folder, the best one first."""
    best = read_entry(folder / "scores.json").get(split)
    if isinstance(best, dict):
        yield best
    yield from map(_read_if_whole, sorted(folder.glob(f"evaluation-{split}-*.json")))


def make_order_key(entry: Entry, newest: Entry) -> tuple[Any, ...]:
    """By what results are compared: of the model that ``newest`` is of, number of images, k, what else was asked for.

    >>> few, many = {"k": 500, "examples": 2}, {"k": 100, "examples": 400}
    >>> make_order_key(few, few) < make_order_key(many, few)
    True
    """
    same = entry.get("checkpoint_step") == newest.get("checkpoint_step")
    return same, _count(entry, "examples"), _count(entry, "k"), _count(entry, "steps"), len(_draws(entry))


def make_name(kind: str, split: str, entry: Entry) -> str:
    """The file of a result: what it is of, and a mark of whatever else was asked (seed, IWAE draws, steps of the climb).

    >>> make_name("evaluation", "test", {"k": 5, "examples": 30, "seed": 0, "checkpoint_step": 20, "iwae": {"5": {}}})
    'evaluation-test-step20-k5-n30-2b8bfd4b.json'
    """
    asked = repr((_count(entry, "seed"), _draws(entry), _count(entry, "steps")))
    step, k, images = (_count(entry, name) for name in ("checkpoint_step", "k", "examples"))
    return f"{kind}-{split}-step{step}-k{k}-n{images}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.json"


def describe_entry(entry: Entry) -> str:
    """
    >>> describe_entry({"k": 5, "examples": 30, "checkpoint_step": 20})
    '30 images, k = 5, step 20'
    """
    return f"{_count(entry, 'examples')} images, k = {_count(entry, 'k')}, step {_count(entry, 'checkpoint_step')}"


def read_entry(path: Path) -> Entry:
    """The JSON object of a file, empty where there is none; ValueError, one line, for a damaged one."""
    try:
        value = read_json(path)
    except FileNotFoundError:
        return {}
    except Damaged as error:
        raise ValueError(f"{error}; remove it and evaluate again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{printable(path)} is damaged (it is no JSON object); remove it and evaluate again")
    return value


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within this context no other process keeps a result in this folder: what one reads and writes back, the other would lose.

    Where the file system has no locks it is as without this.
    """
    with open_folder_of(folder / "scores.json") as opened:  # closing it gives the lock back
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _read_if_whole(path: Path) -> Entry:
    """As ``read_entry``, with nothing in place of a damaged file: it is one answer among others, and is written again."""
    with contextlib.suppress(ValueError, OSError):
        return read_entry(path)
    return {}


def _write(path: Path, entry: Entry) -> None:
    write_atomically(path, (json.dumps(replace_nonfinite(entry), indent=1) + "\n").encode())


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        write_atomically(target, read_bytes(source, LIMIT))


def _count(entry: Any, name: str) -> int:
    """A whole number of an entry; 0 where there is none, as in files of earlier versions, or anything else."""
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else 0


def _draws(entry: Entry) -> list[str]:
    """The numbers of IWAE draws of an entry."""
    draws = entry.get("iwae")
    return sorted(map(str, draws)) if isinstance(draws, dict) else []
