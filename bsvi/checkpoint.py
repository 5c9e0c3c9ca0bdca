"""One checkpoint is one file of tensors and JSON: hashed as a whole, written so that it is there entirely or not at all.

Layout: a line with magic and version, a line with the SHA-256 of the rest, and a safetensors payload whose metadata holds the
JSON scalars. Nothing is parsed before the hash was compared, and nothing in the file can be code.
"""

import contextlib
import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"bsvi checkpoint 1\n"
_HEAD = len(MAGIC) + 65


class BadCheckpoint(ValueError):
    """The file is not a whole checkpoint of this version; the message says why."""


def pack(tensors: "dict[str, Tensor]", scalars: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint.

    >>> import torch
    >>> tensors, scalars = unpack(pack({"a": torch.ones(2)}, {"step": 3}))
    >>> tensors["a"].tolist(), scalars
    ([1.0, 1.0], {'step': 3})
    """
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    payload = save(own, metadata={"scalars": json.dumps(scalars)})
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def unpack(data: bytes) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors and scalars, or BadCheckpoint."""
    if len(data) < _HEAD or not data.startswith(MAGIC):
        found = data[: len(MAGIC)]
        reason = (
            "empty" if not data else "too short" if MAGIC.startswith(found) else "not a bsvi checkpoint of version 1"
        )
        raise BadCheckpoint(reason)
    payload = data[_HEAD:]
    if data[len(MAGIC) : _HEAD] != hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise BadCheckpoint("its SHA-256 does not match: damaged or cut off")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(payload)
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
        scalars = json.loads(header["__metadata__"]["scalars"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise BadCheckpoint(f"not readable as tensors and JSON ({type(error).__name__})") from None
    if not isinstance(scalars, dict):
        raise BadCheckpoint("its scalars are no JSON object")
    return tensors, scalars


def write_atomically(path: Path, data: bytes) -> None:
    """Write, flush to the disk, rename, flush the folder: after a crash ``path`` is the old file or the new one, whole.

    Where it fails (disk full), the temporary file is removed, the old file stays, and the error is raised.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left behind in the middle of a write."""
    for left in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            left.unlink()


def finite_or_none(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, in numbers at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return value
