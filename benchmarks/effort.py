"""What a quick look at the amortization gap is worth: each effort on the same images, against the default one.

    ./run python benchmarks/effort.py [RUN...] [--data-dir DIR]

Each RUN is a folder of ``bsvi train``. Without any, a small VAE is trained on the embedded digits first. Differences are
paired by image. Time is CPU time of one thread.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributions import Bernoulli

import bsvi
from bsvi.data import evaluation_batches, load_digits, training_batches
from bsvi.evaluation.gap import Gap
from bsvi.experiments.trained import load_trained

PARTS = ("amortization_gap", "approximation_gap")


class Decoder(nn.Sequential):
    """ln p(x|z) of binary pixels."""

    def forward(self, x, z):  # type: ignore[override]
        return Bernoulli(logits=super().forward(z)).log_prob(x.flatten(1)).sum(-1)


def train_on_digits(updates: int = 1500, latents: int = 4) -> bsvi.VAE:
    """A VAE trained as a VAE is, by Adam."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.Tanh(), nn.Linear(50, 2 * latents))
    model = bsvi.VAE(encoder, Decoder(nn.Linear(latents, 50), nn.Tanh(), nn.Linear(50, 64)))
    objective, optimizer = bsvi.objective("vae"), torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, _ in training_batches(load_digits().train, seed=0, batch_size=50, steps=updates):
        optimizer.zero_grad()
        objective(model, x).loss.backward()
        optimizer.step()
    return model


def list_models(runs: list[Path], data_dir: Path | None, images: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """Name, model and test batches of each run, or of the digits."""
    if not runs:
        yield (
            "digits, vae",
            train_on_digits(),
            list(evaluation_batches(load_digits().test.take(images), batch_size=images)),
        )
    for run in runs:
        trained = load_trained(run, torch.device("cpu"))
        split = trained.data(data_dir).test.take(images)
        yield (
            f"{run.resolve().parent.name}, {trained.experiment.method}",
            trained.inference,
            list(evaluation_batches(split, batch_size=images)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders of bsvi train")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--images", type=int, default=100, help="the first N test images")
    parser.add_argument("--efforts", nargs="+", default=["quick", "default"])
    words = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | effort | encoder loses | less than default | family loses | less than default | CPU time, default = 1 |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, model, batches in list_models(words.runs, words.data_dir, words.images):
        gaps: dict[str, Gap] = {}
        spent: dict[str, float] = {}
        for effort in dict.fromkeys(["default", *words.efforts]):
            begin = time.process_time()
            gaps[effort] = bsvi.amortization_gap(model, batches, effort=effort)
            spent[effort] = time.process_time() - begin
        for effort in words.efforts:
            cells = []
            for part in PARTS:
                score, usual = getattr(gaps[effort], part), getattr(gaps["default"], part)
                less = usual - score
                cells += [f"{score.mean:.2f}", "" if effort == "default" else f"{less.mean:.2f} ± {less.stderr:.2f}"]
            print(f"| {name} | {effort} | {' | '.join(cells)} | {spent[effort] / spent['default']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
