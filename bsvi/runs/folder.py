"""The run folder (docs/run_folder.md): configuration, metrics, checkpoints, lock, result. Imports no torch by itself."""

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.runs.checkpoint import BadCheckpoint, pack, read_count, replace_nonfinite, unpack
from bsvi.runs.lock import Lock, RunError
from bsvi.runs.metrics import MetricsFile
from bsvi.runs.weights import pack_tensors
from bsvi.system.files import (
    UnsafeFile,
    check_plain,
    open_to_write,
    printable,
    read_bytes,
    remove_temporaries,
    write_atomically,
)
from bsvi.system.reading import read_json

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 2  # checkpoints: the newest, and the one before should the newest be damaged


class Run:
    """One run folder, owned by this process while it is open: ``with Run(folder) as run``.

    ``identity`` names what the states of this run belong to (configuration, data, version), by field. It is written into every
    checkpoint, and a checkpoint with another one is refused.
    """

    def __init__(self, folder: Path | str, identity: dict[str, Any] | None = None) -> None:
        self.folder, self.identity = Path(folder), identity
        self.warnings: list[str] = []  # not told to anyone yet
        self._lock = Lock(self.folder)
        self._metrics = MetricsFile(self.folder / "metrics.jsonl", self.warn)

    # --- ownership -----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Run":
        """Take the folder, or raise RunError at once if a living process has it. The kernel frees a dead owner's lock."""
        self._lock.take()
        try:
            for name in ("metrics.jsonl", "log.txt"):  # they are written in place
                check_plain(self.folder / name)
        except UnsafeFile as error:
            self._lock.release()
            raise RunError(f"{error.filename} {error.strerror}") from None
        remove_temporaries(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    # --- configuration and result ---------------------------------------------------------------------------------

    def read(self, name: str, *fields: str) -> dict[str, Any] | None:
        """A JSON object of the folder that has these fields, or None where there is no such file."""
        path = self.folder / name
        try:
            value = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnsafeFile as error:
            raise RunError(f"{path} {error.strerror}") from None
        except ValueError:
            value = None
        lacking = [field for field in fields if field not in value] if isinstance(value, dict) else ["anything"]
        if lacking:
            raise RunError(
                f"{path} is damaged (it lacks {', '.join(lacking)}); restore it, or start anew with another --out"
            )
        return value

    def read_result(self) -> dict[str, Any] | None:
        """result.json with the numbers that a result has, or None where training has not ended."""
        result = self.read("result.json", "steps", "best_step", "best_valid_bound")
        for name in ("steps", "best_step", "best_valid_bound") if result is not None else ():
            kinds = int if name != "best_valid_bound" else int | float | None
            if not isinstance(result[name], kinds) or isinstance(result[name], bool):  # type: ignore[index]
                raise RunError(
                    f"{self.folder / 'result.json'} is damaged ({name} is no number); remove it and train on"
                )
        return result

    def write(self, name: str, value: dict[str, Any]) -> None:
        write_atomically(self.folder / name, (json.dumps(replace_nonfinite(value), indent=1) + "\n").encode())

    # --- metrics --------------------------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl; what the disk refuses is kept and written with the next line."""
        self._metrics.append(line)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Path]:
        """The checkpoint files, newest first."""
        found = [path for path in self.folder.glob("state-*.ckpt") if re.fullmatch(r"state-\d{8,18}\.ckpt", path.name)]
        return sorted(found, key=parse_step, reverse=True)

    def save(self, step: int, tensors: "dict[str, Tensor]", scalars: dict[str, Any]) -> bool:
        """Write a checkpoint; on a full disk keep the old one, warn, and return False."""
        if not self._metrics.flush(sync=True):
            return False
        scalars = {**scalars, "step": step, "metrics_end": self._metrics.end, "identity": self.identity}
        try:
            write_atomically(self.folder / f"state-{step:08d}.ckpt", pack(tensors, scalars))
        except OSError as error:
            self.warn(
                f"checkpoint of step {step} not written ({error.strerror}); the one before is intact, training goes on"
            )
            return False
        ours = [path for path in self.checkpoints() if parse_step(path) <= step]
        for old in {*self.checkpoints()} - {*ours[:KEEP]}:  # a later one was passed over when this run was resumed
            with contextlib.suppress(OSError):
                old.unlink()
        return True

    def find(self, limit: int = 1 << 40) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
        """The newest checkpoint that is whole, or None where there is none; changes nothing.

        Damaged ones are named in a warning and passed over. Where none of several can be used it is a RunError: to start
        again at step 0 would overwrite what may still be rescued.
        """
        reasons, fallback = [], None
        for path in self.checkpoints():
            try:
                tensors, scalars = unpack(read_bytes(path, limit))
                end = read_count(scalars, "metrics_end")
                if read_count(scalars, "step") != parse_step(path):
                    raise BadCheckpoint(f"it is of step {scalars['step']}")
                self._check_identity(path, scalars.get("identity"))
                if not self._metrics.has(end):
                    fallback = fallback or (tensors, scalars)
                    raise BadCheckpoint("metrics.jsonl is shorter than it was when this checkpoint was made")
            except (BadCheckpoint, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                reasons.append(f"{path.name}: {reason}")
                self.warn(f"{path.name} is not used: {reason}")
                continue
            return tensors, scalars
        if fallback is not None:
            self.warn(
                f"lines of metrics.jsonl up to step {fallback[1]['step']} are missing; training goes on without them"
            )
            return fallback
        if reasons:
            raise RunError(
                f"no checkpoint in {self.folder} can be used ({'; '.join(reasons)}); restore one, or remove them to start "
                "from the beginning"
            )
        return None

    def load(self, limit: int = 1 << 40) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
        """As ``find``, to go on from: lines of metrics.jsonl of steps that will be taken again are cut off."""
        found = self.find(limit)
        self._metrics.cut(0 if found is None else found[1]["metrics_end"])
        return found

    def copy_state(self, source: "Run", found: "tuple[dict[str, Tensor], dict[str, Any]]") -> None:
        """Begin with a state that was found in another run, and its metrics so far."""
        self.warnings += source.warnings
        tensors, scalars = found
        self._metrics.begin_with(source._metrics.read(scalars["metrics_end"]))
        if not self.save(scalars["step"], tensors, scalars):
            raise RunError(f"{self.folder} could not be written: {self.warnings[-1]}")

    def _check_identity(self, path: Path, theirs: Any) -> None:
        ours = self.identity
        if ours is None or not isinstance(theirs, dict):
            return
        ours = json.loads(json.dumps(ours))  # tuples are lists in a file
        other = [
            f"{k}: {theirs.get(k)} -> {ours.get(k)}" for k in sorted({*ours, *theirs}) if theirs.get(k) != ours.get(k)
        ]
        if other:
            raise RunError(
                f"{path} belongs to another run ({'; '.join(other)}); use the configuration that made it, or --fork NEW"
            )

    def save_model(self, tensors: "dict[str, Tensor]", config: dict[str, Any], step: int) -> bool:
        """model.safetensors: the best weights with their configuration, for sharing; on a full disk warn and return False."""
        own = {name: value for name, value in config.items() if name != "id"}  # equal runs, equal bytes
        metadata = {"format": "pt", "bsvi": json.dumps(replace_nonfinite({**own, "step": step}))}
        try:
            write_atomically(self.folder / "model.safetensors", pack_tensors(tensors, metadata))
        except OSError as error:
            self.warn(f"model.safetensors of step {step} not written ({error.strerror}); training goes on")
            return False
        return True

    def warn(self, line: str) -> None:
        self.warnings.append(printable(line, 2000))

    def note(self, line: str) -> None:
        """Append to log.txt; never a reason to stop."""
        with contextlib.suppress(OSError):
            descriptor = open_to_write(self.folder / "log.txt", os.O_CREAT | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(line, 4000)}\n".encode())


def parse_step(path: Path) -> int:
    """The step in a checkpoint's name."""
    return int(path.stem.removeprefix("state-"))
