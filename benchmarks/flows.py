"""What a flow as q loses under bsvi-sir, when its own parameters learn and when they stay as they were made.

    ./run python benchmarks/flows.py

Each family is trained on the embedded digits from the same seed, for as many updates, with a decoder of the same size. The
flow (zuko's MAF) takes lambda as its context. Its own parameters follow the gradient of ln w_0; without that term they would
stay as they are, which is the row "not learning". The gaps are those of ``bsvi.amortization_gap`` on test images.
"""

import argparse
import time
from collections.abc import Iterable

import torch
import zuko
from torch import nn
from torch.distributions import Bernoulli

import bsvi
from bsvi.data import evaluation_batches, load_digits, training_batches
from bsvi.evaluation.gap import Gap

PIXELS, HIDDEN = 64, 50


class Decoder(nn.Sequential):
    """ln p(x|z) of binary pixels."""

    def __init__(self, latents: int) -> None:
        super().__init__(nn.Linear(latents, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, PIXELS))

    def forward(self, x, z):  # type: ignore[override]
        return Bernoulli(logits=super().forward(z)).log_prob(x.flatten(1)).sum(-1)


def make_model(family: str, latents: int, seed: int) -> bsvi.VAE:
    """A model whose q is a "gaussian", a "flow", or a "frozen" flow."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * latents))
    decoder = Decoder(latents)
    if family == "gaussian":
        return bsvi.VAE(encoder, decoder)
    flow = zuko.flows.MAF(latents, 2 * latents, transforms=2, hidden_features=(32,))
    return bsvi.VAE(encoder, decoder, flow.requires_grad_(family == "flow"))


def train(model: bsvi.VAE, batches: Iterable[torch.Tensor], k: int, seed: int) -> None:
    """Updates of bsvi-sir by Adam, one for each batch."""
    objective = bsvi.objective("bsvi-sir", k=k, svi=bsvi.SVI(lr=0.1, max_grad_norm=1.0))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    torch.manual_seed(seed)
    for x in batches:
        optimizer.zero_grad()
        objective(model, x).loss.backward()
        optimizer.step()


def measure(family: str, updates: int, images: int, latents: int = 4, k: int = 5, seed: int = 0) -> Gap:
    """The gap of a model with this family after so many updates."""
    digits, model = load_digits(), make_model(family, latents, seed)
    batches = training_batches(digits.train, seed=seed, batch_size=50, steps=updates)
    train(model, (x for x, _ in batches), k, seed)
    test = list(evaluation_batches(digits.test.take(images), batch_size=100))
    return bsvi.amortization_gap(model, test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--images", type=int, default=100, help="test images that are judged")
    parser.add_argument("--latents", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = {"gaussian": "Gaussian", "frozen": "flow, not learning", "flow": "flow, learning"}
    print(f"digits, {words.latents} latents, {words.updates} updates, {words.images} test images\n")
    print("| q | seed | ln p(x) | family loses | encoder loses | CPU seconds |\n|---|---|---|---|---|---|")
    for family, name in rows.items():
        for seed in range(words.seeds):
            begin = time.process_time()
            gap = measure(family, words.updates, words.images, words.latents, seed=seed)
            scores = (gap.log_likelihood, gap.approximation_gap, gap.amortization_gap)
            cells = [f"{score.mean:.2f} ± {score.stderr:.2f}" for score in scores]
            print(f"| {name} | {seed} | {' | '.join(cells)} | {time.process_time() - begin:.0f} |", flush=True)


if __name__ == "__main__":
    main()
