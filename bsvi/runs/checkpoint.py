"""One checkpoint is one file of tensors and JSON: hashed as a whole, written so that it is there entirely or not at all.

Layout: a line with magic and version, a line with the SHA-256 of the rest, and a safetensors payload whose metadata holds the
JSON scalars. Nothing is parsed before the hash was compared, and nothing in the file can be code.
"""

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from bsvi.system.reading import parse_json

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
        raise _explain_bad_head(data)
    payload = data[_HEAD:]
    if data[len(MAGIC) : _HEAD] != hashlib.sha256(payload).hexdigest().encode() + b"\n":
        raise BadCheckpoint("its SHA-256 does not match: damaged or cut off")
    from safetensors.torch import load

    try:
        tensors = load(payload)
        header = parse_json(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
        scalars = parse_json(header["__metadata__"]["scalars"].encode())
    except Exception as error:  # a made-up file can fail in any way there is; all of them mean the same
        raise BadCheckpoint(f"not readable as tensors and JSON ({type(error).__name__})") from None
    if not isinstance(scalars, dict):
        raise BadCheckpoint("its scalars are no JSON object")
    return tensors, scalars


def _explain_bad_head(data: bytes) -> BadCheckpoint:
    """Why these bytes do not begin as a checkpoint does."""
    number = data[len(NAME) :].split(b"\n", 1)[0]
    if data.startswith(NAME) and number.isdigit() and len(number) < 9 and int(number) != VERSION:
        return BadCheckpoint(f"it has the format of version {int(number)}, this program reads version {VERSION}")
    if MAGIC.startswith(data[: len(MAGIC)]):
        return BadCheckpoint("cut off" if data else "empty")
    return BadCheckpoint("not a bsvi checkpoint")


def replace_nonfinite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, in numbers at any depth.

    >>> replace_nonfinite({"bound": [1.0, float("nan")]})
    {'bound': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(inner) for inner in value]
    return value


def read_count(scalars: dict[str, Any], name: str) -> int:
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
