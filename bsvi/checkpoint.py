"""One checkpoint is one file of tensors and JSON: hashed as a whole, written so that it is there entirely or not at all.

Layout: a line with magic and version, a line with the SHA-256 of the rest, and a safetensors payload whose metadata holds the
JSON scalars. Nothing is parsed before the hash was compared, and nothing in the file can be code.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch import Tensor

NAME, VERSION = b"bsvi checkpoint ", 1
MAGIC = NAME + str(VERSION).encode() + b"\n"
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
    payload = save(own, metadata={"scalars": json.dumps(scalars, allow_nan=False)})
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def unpack(data: bytes) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors and scalars, or BadCheckpoint."""
    if len(data) < _HEAD or not data.startswith(MAGIC):
        raise _no_head(data)
    payload = data[_HEAD:]
    if data[len(MAGIC) : _HEAD] != hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise BadCheckpoint("its SHA-256 does not match: damaged or cut off")
    from safetensors.torch import load

    try:
        tensors = load(payload)
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
        scalars = json.loads(header["__metadata__"]["scalars"], parse_constant=_no_number)
    except Exception as error:  # a made-up file can fail in any way there is; all of them mean the same
        raise BadCheckpoint(f"not readable as tensors and JSON ({type(error).__name__})") from None
    if not isinstance(scalars, dict):
        raise BadCheckpoint("its scalars are no JSON object")
    return tensors, scalars


def _no_head(data: bytes) -> BadCheckpoint:
    """Why these bytes do not begin as a checkpoint does."""
    number = data[len(NAME) :].split(b"\n", 1)[0]
    if data.startswith(NAME) and number.isdigit() and len(number) < 9 and int(number) != VERSION:
        return BadCheckpoint(f"it has the format of version {int(number)}, this program reads version {VERSION}")
    if MAGIC.startswith(data[: len(MAGIC)]):
        return BadCheckpoint("cut off" if data else "empty")
    return BadCheckpoint("not a bsvi checkpoint")


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file, or BadCheckpoint for what is none (a pipe would block) or is larger than ``limit``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise BadCheckpoint("not a regular file")
        if about.st_size > limit:
            raise BadCheckpoint(f"{about.st_size:,} bytes, where a checkpoint of this model has fewer than {limit:,}")
        return file.read(about.st_size)


def write_atomically(path: Path, data: bytes) -> None:
    """Write, flush to the disk, rename, flush the folder: after a crash ``path`` is the old file or the new one, whole.

    Where it fails (disk full), the temporary file is removed, the old file stays, and the error is raised.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # of a dead process that had our number
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, or raise OSError: a disk that fills up takes a part first."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def flush_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left behind in the middle of a write."""
    for left in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            left.unlink()


def finite_or_none(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, in numbers at any depth.

    >>> finite_or_none({"bound": [1.0, float("nan")]})
    {'bound': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return value


def count_of(scalars: dict[str, Any], name: str) -> int:
    """A scalar that must be a number >= 0."""
    value = scalars.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadCheckpoint(f"its {name} is {value!r:.40}, not a number from 0 up")
    return value


def digest(tensors: "dict[str, Tensor]") -> str:
    """SHA-256 over names, shapes and bytes of tensors: two states are equal if these are.

    >>> import torch
    >>> digest({"a": torch.zeros(2)}) == digest({"a": -torch.zeros(2)})
    False
    """
    import torch

    sha = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return sha.hexdigest()
