"""What a whole update costs in two versions of the code: gradient, norm, clipping and AMSGrad, on data that are made up.

    ./run python benchmarks/update.py OLD                 a commit against the files as they are; some minutes
    ./run python benchmarks/update.py OLD --rounds 40 --method svi
    ./run python benchmarks/update.py OLD --compile --method bsvi-e2e       the files as they are with compiled steps
    ./run python benchmarks/update.py OLD --compile both --experiments omniglot-small svhn-small      both compiled

Both versions stay alive in a process of their own with one thread and take turns. Ratios of CPU time within a round, median
and range.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
MLPS = ("omniglot-mlp", "svhn-mlp")
IMAGES = {
    "omniglot": ((1, 28, 28), "bernoulli"),
    "fashion-mnist": ((1, 28, 28), "logistic"),
    "svhn": ((1, 32, 32), "logistic"),
}


def work(method: str, compiled: bool, experiments: list[str], repeats: int = 4) -> None:
    """Print the milliseconds of an update of each experiment, once for each line of standard input."""
    import torch
    from torch import nn

    from bsvi.experiments.build import build_model, build_objective
    from bsvi.experiments.config import EXPERIMENTS
    from bsvi.system import runtime
    from bsvi.training.state import make_optimizer

    runtime.start(runtime.Runtime("cpu", 1, "on" if compiled else "off"))
    made = {}
    for name in experiments:
        e = EXPERIMENTS[name].model_copy(update={"method": method})
        shape, likelihood = IMAGES[e.data.name]
        model, objective = build_model(e, shape, likelihood), build_objective(e)
        x = torch.rand(50, *shape).mul(255).round() / 255
        if compiled:
            runtime.compile_decoder(model.decoder, "on")
        made[name] = model, objective, x.round() if likelihood == "bernoulli" else x, make_optimizer(model, objective)

    def update(model, objective, x, optimizer) -> None:  # type: ignore[no-untyped-def]
        estimate = objective(model, x)
        optimizer.zero_grad(set_to_none=True)
        estimate.loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        nn.utils.clip_grads_with_norm_(model.parameters(), 5.0, norm)
        optimizer.step()

    for one in made.values():
        for _ in range(5):
            update(*one)
    print("ready", flush=True)
    for _ in sys.stdin:
        times = {}
        for name, one in made.items():
            begin = time.process_time()
            for _ in range(repeats):
                update(*one)
            times[name] = 1e3 * (time.process_time() - begin) / repeats
        print(json.dumps(times), flush=True)


def start(code: Path, method: str, compiled: bool, experiments: list[str]) -> subprocess.Popen[str]:
    """A worker on the package in this folder, once it is ready."""
    words = [sys.executable, __file__, "--work", "--method", method, *(["--compile"] if compiled else [])]
    words += ["--experiments", *experiments]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    worker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    if worker.stdout is None or worker.stdout.readline() != "ready\n":
        raise SystemExit(f"update: the code in {code} does not run (above)")
    return worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="a commit")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--method", default="bsvi-sir")
    parser.add_argument(
        "--compile", nargs="?", const="new", choices=("new", "both"), help="compile the new code, or both"
    )
    parser.add_argument("--experiments", nargs="+", default=MLPS, metavar="NAME", help=f"default: {' '.join(MLPS)}")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = list(arguments.experiments)
    if arguments.work:
        work(arguments.method, arguments.compile is not None, names)
        return
    if unknown := [name for name in names if name.rpartition("-")[0] not in IMAGES]:
        parser.error(f"unknown experiment {unknown[0]}; the data sets: {', '.join(IMAGES)}, the networks: mlp, small")
    if not arguments.old:
        parser.error("name the commit to compare with")
    with tempfile.TemporaryDirectory(prefix="update-") as folder:
        archive = subprocess.run(["git", "-C", str(HERE), "archive", arguments.old, "bsvi"], capture_output=True)
        if archive.returncode:
            parser.error(f"git has no commit {arguments.old}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        workers = {
            "old": start(Path(folder), arguments.method, arguments.compile == "both", names),
            "new": start(HERE, arguments.method, arguments.compile is not None, names),
        }
        times: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for number in range(arguments.rounds):
            for name in sorted(workers, reverse=number % 2 == 0):
                worker = workers[name]
                print("go", file=worker.stdin, flush=True)
                times[name].append(json.loads(worker.stdout.readline()))  # type: ignore[union-attr]
        for worker in workers.values():
            worker.communicate()
    for size in names:
        old, new = ([one[size] for one in times[name]] for name in ("old", "new"))
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        print(
            f"{size:20} {arguments.method}: {statistics.median(old):.1f} -> {statistics.median(new):.1f} ms, ratio "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)"
        )


if __name__ == "__main__":
    main()
