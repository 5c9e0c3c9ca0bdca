"""A small model of a user's own, with BatchNorm in its encoder, and batches with ids."""

import json

import torch
from torch import nn

import bsvi
from bsvi.data.batches import Batch
from bsvi.runs.checkpoint import digest, unpack
from bsvi.runs.folder import Run


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(2, 6)

    def forward(self, x, z):
        return -(x - self.mean(z)).square().sum(-1, dtype=torch.float64)


def make(method="bsvi-pi", seed=0, k=2):
    """Model and objective, the same for the same seed."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    return bsvi.VAE(encoder, Decoder()), bsvi.objective(method, k=k, width=4)


def batches(count=5, size=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, 6, generator=generator) + torch.linspace(-1, 1, 6)
    return [Batch(x[i], torch.arange(size) + 100 * i) for i in range(count)]


VALID = batches(2, 10, seed=2)


def settings(**changes):
    return bsvi.Training(**{"steps": 20, "valid_every": 6, "log_every": 4, "save_every": 1e9, "patience": 0} | changes)


def state_of(folder):
    """Digest and scalars of the newest checkpoint, and the lines of metrics without their seconds."""
    tensors, scalars = unpack(Run(folder).checkpoints()[0].read_bytes())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds"), line.pop("spent")
    scalars.pop("seconds"), scalars.pop("spent")
    scalars.pop("metrics_end")  # "seconds" has not always as many digits
    return digest(tensors), scalars, lines
