"""Whether two versions of the code give the same numbers: a few updates of each method, same seed, compared to the last bit.

    ./run python benchmarks/same_numbers.py OLD          a commit against the files as they are
    ./run python benchmarks/same_numbers.py OLD NEW      two commits

Each version trains in processes of its own, on one thread. Every line of metrics.jsonl must be equal to the last digit, times
aside, and every tensor of model.safetensors bitwise. Columns and tensors that only one version has are named, not compared.
The exit code is 1 where a number differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

TOP = Path(__file__).resolve().parents[1]
METHODS = ("vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi")  # those of the older version
FLAGS = (
    "--log-every=1",
    "--valid-every=10",
    "--threads=1",
    "--device=cpu",
    "--compile=off",
    "--logger=none",
    "--quiet",
)
TIMES = {"seconds", "spent"}  # columns that no two runs share


def check_out(commit: str, folder: Path) -> Path:
    """The files of a commit, unpacked into ``folder``."""
    packed = folder.with_suffix(".tar")
    subprocess.run(["git", "-C", TOP, "archive", "-o", packed, commit, "bsvi"], check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder


def train(code: Path, out: Path, method: str, steps: int, seed: int, flags: tuple[str, ...] = ()) -> Path:
    """Train with the package that lies in ``code``; returns the run folder."""
    command = [
        sys.executable,
        "-m",
        "bsvi",
        "train",
        "digits",
        "--method",
        method,
        f"--steps={steps}",
        f"--seed={seed}",
    ]
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *FLAGS, *flags, "--out", out], cwd=out.parent, env=environment, capture_output=True
    )
    if done.returncode:
        sys.exit(f"{code}: {' '.join(command[2:])} failed:\n{done.stderr.decode()}")
    return out


def differences(old: Path, new: Path) -> tuple[int, list[str], list[str]]:
    """How many numbers two run folders share, which of them differ, and what only one of them has."""
    count, differ, alone = 0, list[str](), set[str]()
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (old, new)]
    if len(lines[0]) != len(lines[1]):
        differ.append(f"metrics.jsonl: {len(lines[0])} and {len(lines[1])} lines")
    for a, b in zip(*lines, strict=False):
        alone |= set(a) ^ set(b)
        for name in sorted((set(a) & set(b)) - TIMES):
            count += 1
            if repr(a[name]) != repr(b[name]):  # repr: NaN equals NaN
                differ.append(f"step {a['step']} {a['split']} {name}: {a[name]} -> {b[name]}")
    weights: list[dict[str, Any]] = [load_file(run / "model.safetensors") for run in (old, new)]
    alone |= set(weights[0]) ^ set(weights[1])
    for name in sorted(set(weights[0]) & set(weights[1])):
        a, b = weights[0][name], weights[1][name]
        count += a.size
        if a.tobytes() != b.tobytes():
            gap = f" by at most {np.abs(a - b).max():.3g}" if a.shape == b.shape else f": {a.shape} -> {b.shape}"
            differ.append(f"weights {name} differ{gap}")
    return count, differ, sorted(alone)


def main() -> int:
    """Train both versions with every method and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", help="a commit; without it the files as they are")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments, flags = parser.parse_known_args()  # other flags are those of `bsvi train`, as --flag=value
    different = 0
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as made:
        folder = Path(made)
        old = check_out(arguments.old, folder / "old")
        new = check_out(arguments.new, folder / "new") if arguments.new else TOP
        for method in arguments.methods:
            runs = [
                train(code, folder / f"{side}-{method}", method, arguments.steps, arguments.seed, tuple(flags))
                for side, code in (("old-run", old), ("new-run", new))
            ]
            count, differ, alone = differences(*runs)
            different += bool(differ)
            only = f" (only in one: {', '.join(alone)})" if alone else ""
            print(f"{method:12} {count:,} numbers, {len(differ)} differ{only}", flush=True)
            for line in differ[:5]:
                print(f"    {line}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
