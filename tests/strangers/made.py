"""A small run folder, whole and quickly made, and files for it that a stranger might send."""

import json
import struct

import torch

from bsvi.data import load
from bsvi.experiments.build import build_model, describe_data
from bsvi.experiments.changes import update_experiment
from bsvi.experiments.config import EXPERIMENTS
from bsvi.runs.folder import Run
from bsvi.runs.weights import pack_tensors

SMALL = {"net": {"kind": "mlp", "latent": 2, "hidden": 4}, "method": "bsvi-sir", "svi": {"steps": 2}, "steps": 2}
LINE = {"seconds": 0.5, "bound": -20.0, "beta": 1.0, "svi_0": -21.0, "svi_k": -20.5, "bsvi_k": -20.0, "kl": 3.0}


def make_run(folder):
    """A run that has ended, as ``bsvi train digits`` leaves it."""
    experiment = update_experiment(EXPERIMENTS["digits"], SMALL, "test")
    dataset = load("digits")
    model = build_model(experiment, dataset.shape, dataset.likelihood)
    about = {
        "experiment": "digits",
        "method": experiment.method,
        "seed": 0,
        "k": 2,
        "config": experiment.model_dump(mode="json"),
        "versions": {"bsvi": "0.1.0", "torch": "2.13.0"},
        "git": None,
        "device": "cpu",
        "threads": 1,
        "processes": 1,
        "data": describe_data(dataset),
        "id": "0" * 32,
    }
    with Run(folder) as run:
        run.write("config.json", about)
        for step in (1, 2):
            run.log({"split": "train", "step": step, **LINE})
        run.log({"split": "valid", "step": 2, "seconds": 0.6, "bound": -19.0, "best": True})
        run.save_model(model.state_dict(), about, 2)
        run.save(2, {"a": torch.ones(2)}, {})
        result = {"steps": 2, "best_step": 2, "best_valid_bound": -19.0, "seconds": 0.6, "stopped": "steps"}
        run.write("result.json", {**result, "decoder_calls": 6})
    return folder


def crafted_models(good):
    """name -> bytes of a model.safetensors that must be refused, made from a good one's bytes."""
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])
    numbers = good[8 + length :]
    about = json.loads(header["__metadata__"]["bsvi"])
    first = next(name for name in header if name != "__metadata__")

    def packed(head, body=numbers):
        text = head if isinstance(head, bytes) else json.dumps(head).encode()
        return struct.pack("<Q", len(text)) + text + body

    def tensor(**fields):
        return packed({**header, first: {**header[first], **fields}})

    def metadata(text):
        return packed({**header, "__metadata__": {"format": "pt", "bsvi": text}})

    def told(**fields):
        return metadata(json.dumps({**about, **fields}))

    def config(**fields):
        return told(config={**about["config"], **fields})

    def net(**fields):
        return config(net={**about["config"]["net"], **fields})

    def data(**fields):
        return told(data={**about["data"], **fields})

    def spoilt(value):
        return good[:-4] + struct.pack("<f", value)

    short = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    return {
        "empty": b"",
        "seven bytes": good[:7],
        "cut in the header": good[: 8 + length // 2],
        "cut in the numbers": good[:-5],
        "a byte too many": good + b"\0",
        "header of 2^63 bytes": struct.pack("<Q", 1 << 63) + good[8:],
        "header of 2^64 - 1 bytes": b"\xff" * 8 + good[8:],
        "header of 1 GiB": struct.pack("<Q", 1 << 30) + good[8:],
        "header of no bytes": struct.pack("<Q", 0) + good[8:],
        "header that is a list": packed([1, 2]),
        "header that is a number": packed(b"12"),
        "header that is null": packed(b"null"),
        "header that is not UTF-8": packed(b'{"\xff": 1}'),
        "header nested 100,000 deep": packed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        "header with a number of 10,000 digits": packed(b'{"a": ' + b"9" * 10_000 + b"}"),
        "header with NaN": packed(b'{"a": NaN}'),
        "twenty thousand tensors": packed(
            {str(i): {**short, "data_offsets": [0, 0], "shape": [0]} for i in range(20_000)}
        ),
        "tensor that is a list": packed({**header, first: []}),
        "tensor without a type": packed({**header, first: {"shape": [2], "data_offsets": [0, 8]}}),
        "unknown type": tensor(dtype="O64"),
        "type that is a list": tensor(dtype=["F32"]),
        "float16": tensor(dtype="F16"),
        "negative shape": tensor(shape=[-2, -4]),
        "shape of 10^18 numbers": tensor(shape=[10**9, 10**9]),
        "shape that overflows": tensor(shape=[2**32, 2**32, 4]),
        "shape of a hundred thousand axes": tensor(shape=[1] * 100_000),
        "shape with a fraction": tensor(shape=[2.0]),
        "shape that is text": tensor(shape="8"),
        "shape that is true": tensor(shape=[True] * 2),
        "negative offsets": tensor(data_offsets=[-8, 0]),
        "offsets beyond the end": tensor(data_offsets=[0, 1 << 40]),
        "offsets the wrong way round": tensor(data_offsets=[8, 0]),
        "three offsets": tensor(data_offsets=[0, 8, 16]),
        "overlapping tensors": packed({"a": short, "b": {**short, "data_offsets": [4, 12]}}, b"\0" * 12),
        "a hole between tensors": packed({"a": short, "b": {**short, "data_offsets": [16, 24]}}, b"\0" * 24),
        "another tensor": packed({**header, "extra": {**short, "shape": [0], "data_offsets": [0, 0]}}),
        "a tensor of another name": packed({name.replace("net", "ten"): entry for name, entry in header.items()}),
        "no metadata": packed({name: entry for name, entry in header.items() if name != "__metadata__"}),
        "metadata that are a list": packed({**header, "__metadata__": []}),
        "metadata that are numbers": packed({**header, "__metadata__": {"bsvi": 1}}),
        "about that is no JSON": metadata("{"),
        "about that is a list": metadata("[]"),
        "about nested 100,000 deep": metadata("[" * 100_000),
        "about with half a character": metadata('{"config": "\\ud800"}'),
        "no step": told(step=None),
        "step that is text": told(step="2"),
        "step below zero": told(step=-1),
        "step of 10^30": told(step=10**30),
        "no configuration": told(config=None),
        "configuration that is text": told(config="digits"),
        "unknown field": config(unknown=1),
        "unknown method": config(method="gan"),
        "latent of 10^9": net(latent=10**9),
        "latent of 65,536": net(latent=65_536),
        "latent that is NaN": net(latent="NaN"),
        "hidden of 10^12": net(hidden=10**12),
        "a million layers": net(kind="pixelcnn", kernels=[3] * 10**6),
        "kernels of 10^9": net(kind="pixelcnn", kernels=[10**9 + 1]),
        "no kernels": net(kind="pixelcnn", kernels=[]),
        "widest PixelCNN": net(kind="pixelcnn", channels=65_536, kernels=[99] * 64),
        "fifty halvings": net(kind="pixelcnn", encoder=[8] * 50),
        "seed of 2^70": config(seed=2**70),
        "10^9 samples": config(svi={**about["config"]["svi"], "samples": 10**9}),
        "experiment with a newline": config(experiment="a\nb"),
        "experiment that leaves": config(experiment="../../a"),
        "no data": told(data=None),
        "no hash": data(sha256=None),
        "hash that is a number": data(sha256=5),
        "no shape": data(shape=None),
        "shape of two axes": data(shape=[8, 8]),
        "images of 10^9 pixels a side": data(shape=[1, 10**9, 10**9]),
        "images below zero": data(shape=[1, -8, 8]),
        "images of text": data(shape=["1", "8", "8"]),
        "colour": data(shape=[3, 8, 8]),
        "a weight that is NaN": spoilt(float("nan")),
        "a weight without end": spoilt(float("inf")),
        "a pickle": b"\x80\x04\x95" + b"\0" * 100,
        "a zip": b"PK\x03\x04" + b"\0" * 100,
        "two keys of one name": packed(good[8:9] + b'"a":1,' + good[9 : 8 + length]),
        "packed with other text": pack_tensors({"a": torch.zeros(3)}, {"bsvi": json.dumps(about)}),
    }
