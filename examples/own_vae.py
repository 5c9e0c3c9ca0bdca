"""Your own encoder and decoder, your own training loop: five lines of bsvi, any of the paper's methods.

    ./run python examples/own_vae.py                          three methods, under a minute
    ./run python examples/own_vae.py --methods all            all eight

Trains on 1,197 embedded 8x8 digits and prints the test log-likelihood (BSVI-50 bound) with its standard error.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

import bsvi
from bsvi.data import evaluation_batches, load_digits, training_batches

LATENT, HIDDEN, PIXELS = 8, 100, 64


class Encoder(nn.Module):
    """x -> (batch, 2 * latent): mean and log-variance of q(z|x)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENT))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Decoder(nn.Module):
    """(x, z) -> ln p(x|z), one number per example; it sees x, so it may be autoregressive. This one is not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, PIXELS))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.distributions.Bernoulli(logits=self.net(z)).log_prob(x.flatten(1)).sum(-1)


def train_and_test(method: str, steps: int, tick) -> tuple[float, float, float]:
    torch.manual_seed(0)
    digits = load_digits()
    model = bsvi.VAE(Encoder(), Decoder())  # the five lines:
    objective = bsvi.objective(method, k=9, svi=bsvi.SVI(lr=0.1, max_grad_norm=1.0))
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=3e-3, amsgrad=True)
    start = time.perf_counter()
    for x, _ in training_batches(digits.train, seed=0, batch_size=50, steps=steps):
        estimate = objective(model, x)
        optimizer.zero_grad()
        estimate.loss.backward()
        optimizer.step()
        tick()
    seconds = time.perf_counter() - start
    torch.manual_seed(1)  # the same noise for every method
    judge = bsvi.objective("bsvi", k=50, svi=bsvi.SVI(lr=0.1, max_grad_norm=1.0))
    with torch.no_grad():
        bound = torch.cat([judge(model, x).bound for x, _ in evaluation_batches(digits.test, batch_size=200)])
    return bound.mean().item(), (bound.std() / len(bound) ** 0.5).item(), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["vae", "svi", "bsvi-sir"], choices=[*bsvi.METHODS, "all"])
    parser.add_argument("--steps", type=int, default=1000, help="training steps for each method (default 1000)")
    parser.add_argument("--out", type=Path, default=Path("figures/own_vae.json"), help="where the results go")
    arguments = parser.parse_args()
    methods = list(bsvi.METHODS) if "all" in arguments.methods else arguments.methods
    torch.set_num_threads(1)  # a network this small is fastest on one core
    table = Table("method", "test ln p(x) >=", "standard error", "time against the first")
    results, columns = {}, (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:12}"), *columns, console=console, disable=not console.is_terminal
    ) as bar:
        for method in methods:
            task = bar.add_task(method, total=arguments.steps)
            mean, error, seconds = train_and_test(method, arguments.steps, lambda task=task: bar.advance(task))
            results[method] = {"log_likelihood": mean, "stderr": error, "seconds": seconds}
            first = results[methods[0]]["seconds"]
            table.add_row(method, f"{mean:.2f}", f"{error:.2f}", f"{seconds / first:.1f}x")
    Console().print(table)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
