"""Files that pretend to be checkpoints. Many carry a correct SHA-256, so that only what comes after it can refuse them."""

import hashlib
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile

import torch
from safetensors.torch import save

from bsvi.runs.checkpoint import MAGIC, pack, unpack


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch '{self.canary}'",)


def signed(payload):
    """Any bytes with the head of a checkpoint and their correct hash."""
    return MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def safetensors(header, data=b""):
    """A safetensors payload with any header, signed."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return signed(struct.pack("<Q", len(text)) + text + data)


def hostile_files(good, canary):
    """name -> bytes, made from a good checkpoint's bytes."""
    tensors, scalars = unpack(good)
    payload = good[len(MAGIC) + 65 :]
    scalars_text = json.dumps(scalars)
    meta = {"__metadata__": {"scalars": scalars_text}}
    pickled = pickle.dumps(Payload(canary))

    def torch_file(**options):
        file = io.BytesIO()
        torch.save({"model": torch.zeros(2), "payload": Payload(canary)}, file, **options)
        return file.getvalue()

    def zipped(name, content=b"x"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, content)
        return file.getvalue()

    def tarred(name):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"x"))
        return file.getvalue()

    def with_tensor(**fields):
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | fields
        return safetensors({"a": entry, **meta}, b"\0" * 8)

    def with_scalars(text):
        return signed(save(tensors, metadata={"scalars": text}))

    def changed(**changes):
        return pack(tensors, {**scalars, **changes})

    def dropped(name):
        return pack({key: value for key, value in tensors.items() if key != name}, scalars)

    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", b"\0" * 50_000_000)
    return {
        "empty": b"",
        "pickle": pickled,
        "pickle, signed": signed(pickled),
        "pickle in the scalars, signed": with_scalars(pickled.decode("latin1")),
        "torch.save": torch_file(),
        "torch.save, signed": signed(torch_file()),
        "old torch.save, signed": signed(torch_file(_use_new_zipfile_serialization=False)),
        "zip with path traversal, signed": signed(zipped(f"../../../..{canary}")),
        "zip bomb, signed": signed(bomb.getvalue()),
        "tar with path traversal, signed": signed(tarred(f"../../../..{canary}")),
        "tensor named by path traversal": pack({**tensors, f"../../../..{canary}": torch.zeros(1)}, scalars),
        "header of 2^63 bytes, signed": signed(struct.pack("<Q", 1 << 63) + payload[8:]),
        "header of 2 GiB, signed": signed(struct.pack("<Q", 1 << 31) + payload[8:]),
        "header of no bytes, signed": signed(struct.pack("<Q", 0)),
        "shape of 10^18 numbers, signed": with_tensor(shape=[10**9, 10**9]),
        "shape that overflows to 2, signed": with_tensor(shape=[2**63, 2, 2]),
        "a hundred thousand axes, signed": with_tensor(shape=[1] * 100_000 + [2]),
        "negative shape, signed": with_tensor(shape=[-2]),
        "negative offsets, signed": with_tensor(data_offsets=[-8, 0]),
        "offsets beyond the end, signed": with_tensor(data_offsets=[0, 1 << 40]),
        "offsets the wrong way round, signed": with_tensor(data_offsets=[8, 0]),
        "overlapping tensors, signed": safetensors(
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
                **meta,
            },
            b"\0" * 12,
        ),
        "unknown type of numbers, signed": with_tensor(dtype="O64"),
        "header nested 100,000 deep, signed": safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "scalars nested 100,000 deep, signed": with_scalars("[" * 100_000 + "]" * 100_000),
        "duplicate keys in the header, signed": safetensors(
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            b"\0" * 8,
        ),
        "header that is not UTF-8, signed": safetensors(b'{"\xff\xfe":1}'),
        "header without scalars, signed": signed(save(tensors)),
        "scalars that are a list, signed": with_scalars("[1, 2]"),
        "scalars with NaN, signed": with_scalars(json.dumps({**scalars, "seconds": float("nan")})),
        "scalars with a number of 10,000 digits, signed": with_scalars('{"step": ' + "9" * 10_000 + "}"),
        "step below zero": changed(step=-1),
        "step that is text": changed(step="40"),
        "step of another file": changed(step=scalars["step"] + 1),
        "metrics_end below zero": changed(metrics_end=-5),
        "looks that are missing": pack(tensors, {k: v for k, v in scalars.items() if k != "looks"}),
        "looks that are NaN": changed(looks={**scalars["looks"], "best": "nan"}),
        "looks that are code": changed(
            looks={**scalars["looks"], "best": f"__import__('os').system('touch {canary}')"}
        ),
        "seconds without end": changed(seconds="inf"),
        "averages that are missing": changed(meter_steps=3) if "meter" not in tensors else dropped("meter"),
        "random state that is missing": dropped("random.cpu"),
        "random state of another length": pack({**tensors, "random.cpu": torch.zeros(9, dtype=torch.uint8)}, scalars),
        "a weight that is missing": dropped(next(name for name in tensors if name.startswith("model."))),
        "a weight of another type": pack(
            {name: value.double() if name.startswith("model.") else value for name, value in tensors.items()}, scalars
        ),
        "an optimiser in part": dropped("optimizer.0.exp_avg"),
        "another version": b"bsvi checkpoint 2\n" + good[len(MAGIC) :],
    }
