"""Tensors with text beside them, as safetensors: the same bytes for the same content, and checked before memory is taken."""

import json
import math
import os
from dataclasses import dataclass
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any

from bsvi.system.reading import parse_json

if TYPE_CHECKING:
    from torch import Tensor

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
HEADER = 4 << 20  # bytes of names, shapes and text
LIMIT = 2 << 30  # bytes of a file of weights
MOST = 10_000  # tensors
AXES = 8


@dataclass(frozen=True)
class Header:
    """What the tensors of a file are called, their types and shapes, and the text beside them."""

    types: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    metadata: dict[str, str]


def pack_tensors(tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> bytes:
    """The bytes of a safetensors file; equal for equal content: the library leaves the order of metadata to chance.

    >>> import torch
    >>> data = pack_tensors({"a": torch.ones(2)}, {"y": "1", "x": "2"})
    >>> json.loads(data[8:-8])["__metadata__"]
    {'x': '2', 'y': '1'}
    """
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    data = save(own, metadata=metadata)
    start = 8 + int.from_bytes(data[:8], "little")
    header = {**json.loads(data[8:start]), "__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[start:]


def read_header(file: BufferedIOBase) -> Header:
    """The header of an open safetensors file, or ValueError with the reason; no tensor is read."""
    size = os.fstat(file.fileno()).st_size
    if not 8 <= size <= LIMIT:
        raise ValueError(f"{size:,} bytes, where 8 to {LIMIT:,} are read")
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(HEADER, size - 8):
        raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
    entries = parse_json(file.read(length))
    if not isinstance(entries, dict) or len(entries) > MOST:
        raise ValueError("its header is no list of tensors")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are no texts")
    places = sorted(_check_entry(entry) for entry in entries.values())
    ends = [0, *(end for _, end in places)]
    if [start for start, _ in places] != ends[:-1] or ends[-1] != size - 8 - length:
        raise ValueError("its tensors do not fill it one after the other")
    types = {name: entry["dtype"] for name, entry in entries.items()}
    return Header(types, {name: tuple(entry["shape"]) for name, entry in entries.items()}, metadata)


def read_tensors(file: BufferedIOBase) -> "dict[str, Tensor]":
    """The tensors of an open file, which are all in memory then; ValueError if it is not the one whose header was read."""
    header = read_header(file)
    from safetensors.torch import load

    file.seek(0)
    data = file.read(min(LIMIT, os.fstat(file.fileno()).st_size))
    try:
        tensors = load(data)
    except MemoryError:
        raise
    except Exception as error:  # whatever the library finds that the checks above did not
        raise ValueError(f"not readable as tensors ({type(error).__name__})") from None
    if {name: tuple(value.shape) for name, value in tensors.items()} != header.shapes:
        raise ValueError("it has changed while it was read")
    return tensors


def _check_entry(entry: Any) -> tuple[int, int]:
    """Where a tensor begins and ends, if its type and shape fit that."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("a tensor without type, shape and place")
    shape, place = entry["shape"], entry["data_offsets"]
    size = SIZES.get(str(entry["dtype"]))
    if size is None or not _are_counts(shape) or len(shape) > AXES or not _are_counts(place) or len(place) != 2:
        raise ValueError("a tensor whose type, shape or place makes no sense")
    if math.prod(shape) * size != place[1] - place[0]:
        raise ValueError("a tensor whose shape does not fit its place")
    return place[0], place[1]


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 40 for value in values)
