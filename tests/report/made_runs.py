"""Makes run folders as docs/run_folder.md describes them, with effects that are known because they are put in."""

import json

import numpy as np
from PIL import Image

METHODS = ("vae", "iwae", "svi", "bsvi-ds", "bsvi", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi")
LEVEL = {"vae": 0.0, "iwae": 2.0, "svi": 1.0, "bsvi-ds": 2.53, "bsvi": 2.5, "bsvi-pi": 2.52, "bsvi-sir": 2.6}
LEVEL["bsvi-sir-pi"] = 2.58
RATE = {"vae": 1.0, "iwae": 4.0, "svi": 1.5, "bsvi-ds": 8.1, "bsvi": 8.2, "bsvi-pi": 8.4, "bsvi-sir": 7.5}
RATE["bsvi-sir-pi"] = 7.4
COST = {"vae": (1, 1.0), "iwae": (10, 4.1), "svi": (11, 7.0), "bsvi-ds": (20, 15.0), "bsvi": (10, 9.5)}
COST |= {"bsvi-pi": (10, 9.6), "bsvi-sir": (11, 7.1), "bsvi-sir-pi": (11, 7.2)}
PARTICLES = (500, 1000, 1500, 2000, 2500)


def make_run(
    root,
    method,
    seed,
    *,
    experiment="omniglot-small",
    data="omniglot",
    config=None,
    k=9,
    steps=2000,
    every=20,
    examples=60,
    base=-90.0,
    seed_spread=0.05,
    scores=("test", "train"),
    ended=True,
    pictures=False,
    level=None,
):
    """One run folder; `level` overrides the method's log-likelihood above `base`."""
    noise = np.random.default_rng([METHODS.index(method), seed, 7])
    folder = root / experiment / f"{method}-seed{seed}"
    folder.mkdir(parents=True)
    tree = {
        "data": {"name": data},
        "net": {"kind": "dense", "width": 200},
        "svi": {"lr": 0.02, "momentum": 0.5},
        "optim": {"lr": 0.001, "batch": 50},
        "steps": steps,
    }
    for key, value in (config or {}).items():
        *room, name = key.split(".")
        (tree.setdefault(room[0], {}) if room else tree)[name] = value
    write(
        folder / "config.json",
        {
            "experiment": experiment,
            "method": method,
            "seed": seed,
            "k": k,
            "config": tree,
            "versions": {"bsvi": "0.1.0", "torch": "2.13.0"},
            "git": None,
            "device": "cpu",
            "threads": 1,
            "data": {"name": data, "sha256": "d" * 64, "train": 24345, "valid": 2000, "test": examples},
        },
    )
    level = LEVEL[method] if level is None else level
    calls, seconds = COST[method]
    luck = noise.normal() * seed_spread
    lines = []
    for step in range(every, steps + 1, every):
        done = 1 - np.exp(-4 * step / steps)
        gain = (
            0.0
            if method in ("vae", "iwae")
            else (0.6 + 0.1 * METHODS.index(method)) * (0.4 + done) + noise.normal() * 0.04
        )
        buffer = 0.6 - 0.04 * METHODS.index(method) + 0.3 * done if method.startswith("bsvi") else 0.0
        first = base - 12 * (1 - done) + level + luck + noise.normal() * 0.3
        over = 3.0 if method in ("bsvi", "bsvi-ds", "bsvi-pi") else 1.4
        lines.append(
            {
                "split": "train",
                "step": step,
                "seconds": step * seconds * 0.01,
                "bound": first + over * done**3,
                "beta": min(1.0, 0.1 + step / 200),
                "svi_0": first,
                "svi_k": first + gain,
                "bsvi_k": first + gain + buffer + noise.normal() * 0.02,
                "kl": RATE[method] * done,
                "reconstruction": -first - RATE[method] * done,
                "buffer_weight_average": 0.5
                + ((0.31 if "sir" in method else 0.24) * done if method.endswith("pi") else 0),
                "ess": 4.0,
                "active_units": 12,
                "nonfinite": 0.0,
                "grad_norm": 1.0,
                "lr": 0.001,
                "decoder_calls": calls * step,
            }
        )
        if step % (5 * every) == 0:
            bound = base - 13 * (1 - done) + level + luck - (over - 1.4) * done**6 + noise.normal() * 0.05
            lines.append(
                {"split": "valid", "step": step, "seconds": step * seconds * 0.01, "bound": bound, "best": True}
            )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "log.txt").write_text("training\n")
    if ended:
        result = {"steps": steps, "best_step": steps, "best_valid_bound": base, "seconds": steps * seconds * 0.01}
        write(folder / "result.json", result | {"stopped": "steps", "decoder_calls": calls * steps})
        write_scores(folder, method, seed, level + luck, base, examples, steps, scores)
    if pictures:
        (folder / "samples").mkdir()
        x, y = np.meshgrid(np.arange(280), np.arange(84))
        waves = 127 + 90 * np.sin(x % 28 / 4 + y // 28) * np.cos(y % 28 / 5) + 30 * noise.normal(size=x.shape)
        Image.fromarray(waves.clip(0, 255).astype(np.uint8)).save(folder / "samples" / "latents.png")
    return folder


def write_scores(folder, method, seed, level, base, examples, step, splits):
    summary = {}
    for split in splits:
        hard = np.random.default_rng([1, len(split)]).normal(size=examples) * 8  # the same images for every run
        noise = np.random.default_rng([METHODS.index(method), seed, len(split)])
        likelihood = base + level + (1.2 if split == "train" else 0) + hard + noise.normal(size=examples) * 0.2
        rate = RATE[method] + noise.normal(size=examples) * 0.3
        elbo = likelihood - 0.02 - 0.15 * rate
        arrays = {"log_likelihood": likelihood, "elbo": elbo, "kl": rate, "reconstruction": -elbo - rate}
        arrays["amortized_elbo"] = elbo - 0.9
        arrays |= {f"iwae_{n}": likelihood - 30 / n * rate / 8 for n in PARTICLES}
        np.savez(folder / f"scores-{split}.npz", ids=np.arange(examples), **arrays)
        entry = {name: interval(values) for name, values in arrays.items() if not name.startswith("iwae")}
        entry["iwae"] = {str(n): interval(arrays[f"iwae_{n}"]) for n in PARTICLES}
        entry |= {"k": 500, "examples": examples, "seed": 0, "data_sha256": "d" * 64, "seconds": 12.3}
        entry |= {"checkpoint_step": step, "diagnostics": {}, "warnings": []}
        summary[split] = entry
    if summary:
        write(folder / "scores.json", summary)


def interval(values):
    error = float(values.std(ddof=1) / len(values) ** 0.5)
    mean = float(values.mean())
    return {"mean": mean, "stderr": error, "low": mean - 2 * error, "high": mean + 2 * error}


def write(path, content):
    path.write_text(json.dumps(content))


def make_runs(root, methods=METHODS, seeds=(0, 1, 2, 3), **options):
    return [make_run(root, method, seed, **options) for method in methods for seed in seeds]
