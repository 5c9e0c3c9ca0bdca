"""What the library costs on top of the maths: ratios measured in one run, variants alternating, medians.

    ./run python benchmarks/objective.py                  a minute or two on 2 quiet cores
    ./run python benchmarks/objective.py --rounds 60

1. objective overhead: a training step's gradient through ``bsvi.objective`` against a loop written by hand for just that method
   (same maths, same decoder calls; no checks, no trajectory, no KL), for vae, svi and bsvi-sir;
2. a bsvi-sir step against an svi step with k' = k + 1 (the paper: the same wall-clock);
3. peak memory of a bsvi-sir step at k = 9, 50 and 200, each in a fresh process.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import bsvi
from bsvi import nets
from bsvi.system import runtime

BATCH, LATENT, K = 50, 32, 9
LR, MOMENTUM, CLIP = 0.02, 0.5, 50**0.5


def make(kind: str) -> tuple[bsvi.VAE, Tensor]:
    """The networks of omniglot-mlp or omniglot-small, and a batch of random images."""
    torch.manual_seed(0)
    x = torch.rand(BATCH, 1, 28, 28).round()
    if kind == "mlp":
        return bsvi.VAE(nets.MLPEncoder(LATENT), nets.MLPDecoder(LATENT)), x
    encoder = nets.ResNetEncoder(LATENT, channels=(8, 16, 16))
    return bsvi.VAE(encoder, nets.PixelCNN(LATENT, channels=8, kernels=nets.SMALL_KERNELS)), x


def draw(model: bsvi.VAE, x: Tensor, lambda_: Tensor) -> tuple[Tensor, Tensor]:
    """z and ln w, written out."""
    mean, log_var = lambda_.chunk(2, dim=-1)
    log_var = log_var.clamp(-20.0, 20.0)
    eps = torch.randn_like(mean)
    z = mean + (0.5 * log_var).exp() * eps
    return z, model.decoder(x, z) + 0.5 * (eps.square() + log_var - z.square()).sum(-1)


def clip(g: Tensor) -> Tensor:
    parts = g.nan_to_num(0.0, 0.0, 0.0).view(len(g), 2, -1)
    return (parts * (CLIP / parts.norm(dim=-1, keepdim=True)).clamp(max=1.0)).flatten(1)


def vae_by_hand(model: bsvi.VAE, x: Tensor) -> None:
    _, log_w = draw(model, x, model.encoder(x))
    (-log_w.mean()).backward()


def walk_by_hand(model: bsvi.VAE, x: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
    """k steps: lambda_0 with its graph, the raw first gradient, lambda_k, and the z and ln w on the way."""
    lambda_0 = model.encoder(x)
    lambda_, velocity, first, zs, log_ws = lambda_0.detach(), 0.0, None, [], []
    for _ in range(steps):
        lambda_ = lambda_.requires_grad_()
        z, log_w = draw(model, x, lambda_)
        (g,) = torch.autograd.grad(log_w.sum(), lambda_)
        first = g if first is None else first
        velocity = MOMENTUM * velocity + clip(g)
        lambda_ = lambda_.detach() + LR * velocity
        zs.append(z.detach())
        log_ws.append(log_w.detach())
    return lambda_0, first, lambda_, zs, log_ws


def svi_by_hand(model: bsvi.VAE, x: Tensor) -> None:
    lambda_0, first, lambda_, _, _ = walk_by_hand(model, x, K + 1)
    _, log_w = draw(model, x, lambda_)
    (-(log_w.mean() + (lambda_0 * first).sum(-1).mean())).backward()


def bsvi_sir_by_hand(model: bsvi.VAE, x: Tensor) -> None:
    lambda_0, first, lambda_, zs, log_ws = walk_by_hand(model, x, K)
    with torch.no_grad():
        z, log_w = draw(model, x, lambda_)
    log_w = torch.stack([*log_ws, log_w])
    index = torch.multinomial(log_w.softmax(0).T, 1)[:, 0]
    z = torch.stack([*zs, z])[index, torch.arange(len(x))]
    log_joint = model.decoder(x, z) - 0.5 * z.square().sum(-1)
    (-(log_joint.mean() + (lambda_0 * first).sum(-1).mean())).backward()


BY_HAND = {"vae": vae_by_hand, "svi": svi_by_hand, "bsvi-sir": bsvi_sir_by_hand}


def alternate(variants: dict[str, object], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant in each round; the order is reversed every other round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_ in range(rounds + 2):
        for name in list(variants)[:: 1 if round_ % 2 else -1]:
            start = time.process_time()  # of one thread: what else the machine does matters less
            for _ in range(repeats):
                variants[name]()  # type: ignore[operator]
            if round_ >= 2:  # two rounds to warm up
                seconds[name].append((time.process_time() - start) / repeats)
    return seconds


def ratio(seconds: dict[str, list[float]], above: str, below: str) -> dict[str, float]:
    values = sorted(a / b for a, b in zip(seconds[above], seconds[below], strict=True))
    n = len(values)
    return {"median": statistics.median(values), "low": values[n // 4], "high": values[(3 * n) // 4], "n": n}


def step(model: bsvi.VAE, x: Tensor, name: str):
    objective = bsvi.objective(name, k=K)
    return lambda: objective(model, x).loss.backward()


def peak_memory(k: int) -> float:
    """Peak resident memory in MB of a fresh process that takes two bsvi-sir steps at this k."""
    code = f"from benchmarks.objective import memory_case; memory_case({k})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"the memory case k = {k} failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def memory_case(k: int) -> None:
    runtime.start(runtime.Runtime("cpu", 1, "off"))
    model, x = make("pixelcnn")
    objective = bsvi.objective("bsvi-sir", k=k)
    for _ in range(2):
        objective(model, x).loss.backward()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON")
    arguments = parser.parse_args()
    runtime.start(runtime.Runtime("cpu", 1, "off"))
    report: dict[str, dict] = {}
    for kind, repeats, share in (("mlp", 6, 1.0), ("pixelcnn", 1, 0.3)):
        model, x = make(kind)
        variants = {name: step(model, x, name) for name in BY_HAND}
        variants |= {f"{name} by hand": partial(by_hand, model, x) for name, by_hand in BY_HAND.items()}
        seconds = alternate(variants, max(5, int(arguments.rounds * share)), repeats)
        print(
            f"omniglot-{'mlp' if kind == 'mlp' else 'small'} networks, batch {BATCH}, k = {K}, CPU time of one thread"
        )
        rows = {f"{name} / by hand": ratio(seconds, name, f"{name} by hand") for name in BY_HAND}
        rows["bsvi-sir / svi-k'"] = ratio(seconds, "bsvi-sir", "svi")
        for name, row in rows.items():
            milli = 1000 * statistics.median(seconds[name.split(" ")[0]])
            print(
                f"  {name:22} {row['median']:.3f}  ({row['low']:.3f} to {row['high']:.3f}, n = {row['n']}; {milli:.1f} ms a step)"
            )
        report[kind] = rows
    memory = {k: peak_memory(k) for k in (9, 50, 200)}
    print("peak memory of a bsvi-sir step, omniglot-small networks, fresh process each, against k = 9")
    for k, value in memory.items():
        print(f"  k = {k:<4} {value / memory[9]:.3f}  ({value:.0f} MB)")
    report["peak memory, ratio to k = 9"] = {str(k): value / memory[9] for k, value in memory.items()}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
