"""The run folder (docs/run_folder.md): configuration, metrics, checkpoints, lock, result. Imports no torch by itself."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bsvi.checkpoint import BadCheckpoint, finite_or_none, pack, remove_temporaries, unpack, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

KEEP = 2  # checkpoints: the newest, and the one before should the newest be damaged


class RunError(RuntimeError):
    """Something about a run folder that the user can act on; one line."""


class Run:
    """One run folder, owned by this process while it is open."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.warnings: list[str] = []
        self._lock: int | None = None
        self._pending: list[bytes] = []  # metrics that the disk did not take yet
        self._metrics_end = 0

    # --- ownership -----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Run":
        """Take the folder, or raise RunError at once if a living process has it. The kernel frees a dead owner's lock."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
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
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        remove_temporaries(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)  # the file stays: removing it would let two owners hold two files of one name
            self._lock = None

    def _owner(self) -> str:
        for _ in range(20):  # the owner may have locked the file a moment before it writes its name
            with contextlib.suppress(OSError, ValueError):
                owner = json.loads((self.folder / "lock").read_bytes())
                return f"process {owner['pid']} on {owner['host']}"
            time.sleep(0.02)
        return "another process"

    # --- configuration and result ---------------------------------------------------------------------------------

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder, or None where there is none."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            return json.loads(path.read_bytes())
        except ValueError:
            raise RunError(f"{path} is not JSON any more; restore it, or start anew with another --out") from None

    def write(self, name: str, value: dict[str, Any]) -> None:
        write_atomically(self.folder / name, (json.dumps(finite_or_none(value), indent=1) + "\n").encode())

    # --- metrics --------------------------------------------------------------------------------------------------

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl; what the disk refuses is kept and written with the next line."""
        self._pending.append((json.dumps(finite_or_none(line)) + "\n").encode())
        self._flush()

    def _flush(self) -> bool:
        data = b"".join(self._pending)
        try:
            with open(self.folder / "metrics.jsonl", "ab") as file:
                file.truncate(self._metrics_end)  # a line that was cut off by a full disk or a kill
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self.warn(f"metrics.jsonl could not be written ({error.strerror}); training goes on, the lines are kept")
            return False
        self._metrics_end += len(data)
        self._pending.clear()
        return True

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[Path]:
        """The checkpoint files, newest first."""
        found = [path for path in self.folder.glob("state-*.ckpt") if re.fullmatch(r"state-\d+\.ckpt", path.name)]
        return sorted(found, key=lambda path: int(path.stem[6:]), reverse=True)

    def save(self, step: int, tensors: "dict[str, Tensor]", scalars: dict[str, Any]) -> bool:
        """Write a checkpoint; on a full disk keep the old one, warn, and return False."""
        if not self._flush():
            return False
        scalars = {**scalars, "step": step, "metrics_end": self._metrics_end}
        try:
            write_atomically(self.folder / f"state-{step:08d}.ckpt", pack(tensors, scalars))
        except OSError as error:
            self.warn(
                f"checkpoint of step {step} not written ({error.strerror}); the one before is intact, training goes on"
            )
            return False
        for old in self.checkpoints()[KEEP:]:
            with contextlib.suppress(OSError):
                old.unlink()
        return True

    def load(self) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
        """The newest checkpoint that is whole, or None; damaged ones are named in a warning and passed over."""
        for path in self.checkpoints():
            try:
                tensors, scalars = unpack(path.read_bytes())
                self._metrics_end = int(scalars["metrics_end"])
                metrics = self.folder / "metrics.jsonl"
                if self._metrics_end > (metrics.stat().st_size if metrics.exists() else 0):
                    raise BadCheckpoint("metrics.jsonl is shorter than it was when this checkpoint was made")
            except (BadCheckpoint, OSError, KeyError, TypeError, ValueError) as error:
                self.warn(f"{path.name} is not used: {error}")
                continue
            if metrics.exists():
                os.truncate(metrics, self._metrics_end)  # lines of steps that will be taken again
            return tensors, scalars
        self._metrics_end = 0
        return None

    def save_model(self, tensors: "dict[str, Tensor]", config: dict[str, Any], step: int) -> bool:
        """model.safetensors: the best weights with their configuration, for sharing; on a full disk warn and return False."""
        from safetensors.torch import save

        own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        metadata = {"format": "pt", "bsvi": json.dumps({**config, "step": step})}
        try:
            write_atomically(self.folder / "model.safetensors", save(own, metadata=metadata))
        except OSError as error:
            self.warn(f"model.safetensors of step {step} not written ({error.strerror}); training goes on")
            return False
        return True

    def warn(self, line: str) -> None:
        self.warnings.append(line)
        self.note(f"warning: {line}")

    def note(self, line: str) -> None:
        """Append to log.txt; never a reason to stop."""
        with contextlib.suppress(OSError), open(self.folder / "log.txt", "a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def digest(tensors: "dict[str, Tensor]") -> str:
    """SHA-256 over names, shapes and bytes of tensors: two states are equal if these are."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.reshape(-1).view(_bytes()).numpy().tobytes() if value.numel() else b"")
    return sha.hexdigest()


def _bytes() -> Any:
    import torch

    return torch.uint8
