"""Why a buffer helps: a posterior with two modes, and proposals that walk from one to the other.

    ./run python examples/toy_posterior.py            writes figures/toy_posterior.png and .pdf, prints the numbers

ln p(x) and the posterior are exact here. SVI ends with one Gaussian on one mode; the buffer still holds the draws that were made
on the way, and resampling them by their weights (q_SIR) covers both modes.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import bsvi
from bsvi.theta import resample

K, SAMPLES, TRAJECTORIES = 9, 16, 20_000
GRID = torch.linspace(-5.0, 5.0, 1001, dtype=torch.float64)


class TwoModes:
    """A Model without our base class: p(x, z) = p(z|x) = .3 N(-1.6, .4) + .7 N(1.4, .6), so ln p(x) = 0 exactly."""

    def encode(self, x: Tensor) -> Tensor:
        return torch.tensor([-1.8, 0.5], dtype=torch.float64).expand(len(x), -1)  # an encoder that sees the left mode

    def posterior(self, lambda_: Tensor) -> bsvi.DiagonalGaussian:
        return bsvi.DiagonalGaussian(lambda_)

    def log_prior(self, z: Tensor) -> Tensor:
        left = torch.distributions.Normal(-1.6, 0.4).log_prob(z[:, 0]) + np.log(0.3)
        right = torch.distributions.Normal(1.4, 0.6).log_prob(z[:, 0]) + np.log(0.7)
        return torch.logaddexp(left, right)

    def log_lik(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.zeros_like(z[:, 0])


def density(z: Tensor) -> Tensor:
    histogram = torch.histogram(z.flatten().float(), bins=200, range=(-5.0, 5.0), density=True)
    return histogram.hist.double()


def kl(p: Tensor, q: Tensor, width: float) -> float:
    keep = p > 0
    return float((p[keep] * (p[keep].log() - q[keep].log())).sum() * width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder for the figure (default figures)")
    out = parser.parse_args().out
    torch.manual_seed(0)
    model, svi = TwoModes(), bsvi.SVI(steps=K, lr=0.5, max_grad_norm=3.0, samples=SAMPLES)
    with torch.no_grad():
        estimate = bsvi.Objective(svi)(model, torch.zeros(TRAJECTORIES, 1))
    t = estimate.trajectory
    r = bsvi.responsibilities(t.log_w, estimate.log_pi)
    sir, last = density(resample(t.z, r, SAMPLES)), density(t.z[-SAMPLES:])
    centres = torch.linspace(-4.975, 4.975, 200, dtype=torch.float64)
    exact = model.log_prior(centres[:, None]).exp()
    bounds = {"SVI-0": t.log_w[:SAMPLES].mean(0), f"SVI-{K}": t.log_w[-SAMPLES:].mean(0), f"BSVI-{K}": estimate.bound}
    print("ln p(x) = 0 exactly. Bounds, each with its standard error:")
    for name, value in bounds.items():
        print(f"  {name:8} {value.mean():8.4f} +- {value.std() / TRAJECTORIES**0.5:.4f}")
    kl_sir, kl_last = kl(sir, exact, 0.05), kl(last, exact, 0.05)
    print(f"KL(q_SIR || posterior) = {kl_sir:.4f}, at most {-estimate.bound.mean():.4f} (docs/theory.md)")
    print(f"KL(q_{K} || posterior) = {kl_last:.4f}, q_{K} averaged over walks")

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.9, K + 1))
    posterior = model.log_prior(GRID[:, None]).exp()
    for i in range(K + 1):
        q = model.posterior(t.lambda_[i * SAMPLES, :1])
        axes[0].plot(GRID, q.log_prob(GRID[:, None]).exp(), color=colours[i], lw=1.2)
        peak = float(q.mean[0, 0])
        if i in (0, K):
            axes[0].annotate(f"$q_{i}$", (peak, float(q.log_prob(q.mean).exp()) + 0.02), color=colours[i], ha="center")
    for axis in (axes[0], axes[2]):
        axis.fill_between(GRID, posterior, color="0.85", label="posterior p(z|x)")
        axis.set_xlim(-4.5, 4.5)
        axis.set_xlabel("z")
    axes[0].set_title("one walk: proposals $q_0 \\ldots q_k$", fontsize=10)
    axes[1].bar(range(K + 1), r.unflatten(0, (-1, SAMPLES)).sum(1).mean(1), color=colours)
    axes[1].set_xlabel("i")
    axes[1].set_title("mean responsibility $r_i$: every proposal is used", fontsize=10)
    axes[2].plot(centres, last, color="#d55e00", label=f"$q_{K}$ (SVI), KL {kl_last:.2f}")
    axes[2].plot(centres, sir, color="#0072b2", label=f"$q_{{SIR}}$ (BSVI), KL {kl_sir:.3f}")
    axes[2].legend(frameon=False, fontsize=8, loc="upper left")
    axes[2].set_title("what theta learns from", fontsize=10)
    out.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "pdf"):
        figure.savefig(out / f"toy_posterior.{suffix}", dpi=150)
    print(f"figure: {out / 'toy_posterior.png'}")


if __name__ == "__main__":
    main()
