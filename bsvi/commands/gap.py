"""``bsvi gap RUN``: what the encoder loses: approximation and amortization gap, and the images on which it fails worst."""

import argparse
from pathlib import Path
from typing import Any

from bsvi.commands.trained_run import add_common, make_batches, prepare, print_start
from bsvi.experiments import batching
from bsvi.runs import results
from bsvi.system.files import open_to_read
from bsvi.system.reading import parse_json
from bsvi.system.terminal import Parser


def main(words: list[str]) -> int:
    parser = Parser(prog="bsvi gap", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--effort", choices=("quick", "default", "thorough"), default="default", help="what --k and --steps are"
    )
    parser.add_argument("--k", type=int, help="draws of each q for its ELBO and for ln p(x) (default 500, by --effort)")
    parser.add_argument("--steps", type=int, help="of the climb to each image's best q (default 500, by --effort)")
    parser.add_argument("--save", action="store_true", help="write each image's best q (lambda) to an npz file")
    parser.add_argument("--examples", type=int, default=200, help="only the first N test images (default 200)")
    parser.add_argument("--worst", type=int, default=20, help="how many of the worst images to show (default 20)")
    add_common(parser)
    arguments = parser.parse_args(words)

    import torch

    from bsvi.evaluation.gap import EFFORTS, amortization_gap
    from bsvi.experiments import pictures

    arguments.k = EFFORTS[arguments.effort] if arguments.k is None else arguments.k
    arguments.steps = EFFORTS[arguments.effort] if arguments.steps is None else arguments.steps
    trained, split, progress, _ = prepare(
        arguments, "test", lambda _: batching.count_gap_passes(arguments.k, arguments.steps)
    )
    results.read_entry(trained.folder / "gap.json")  # what is damaged is told before the work, not after it
    with progress:
        gap = amortization_gap(
            trained.inference,
            make_batches(split, arguments.batch_size, trained.device),
            steps=arguments.steps,
            k=arguments.k,
            seed=arguments.seed,
            store=name_gap_store(arguments, trained),
            progress=progress.update,
            keep_lambda=arguments.save,
        )
    print(f"{trained.folder} (test, {len(split)} images, step {trained.step})")
    print_start(trained)
    print(gap)
    asked = {"k": arguments.k, "steps": arguments.steps, "seed": arguments.seed, "checkpoint_step": trained.step}
    asked |= {"trained_steps": trained.steps} if trained.steps else {}
    own, best = results.keep_gap(trained.folder, {**asked, **gap.summary()})
    largest = own.name == results.make_name("gap", "test", best)
    worst = gap.worst(min(arguments.worst, len(split)))
    at = torch.tensor([split.ids.tolist().index(i) for i in worst])
    name = "gap-worst" if largest else f"{own.stem}-worst"
    sheet = pictures.write_grid(trained.folder / name, split.grey(at)[None], trained.folder)
    print(f"  worst images (ids {', '.join(map(str, worst[:10]))}): {sheet}")
    print(f"  {gap.seconds_per_example:.3g} s per image")
    if arguments.save:
        gap.save_optimum(trained.folder / f"{own.stem}-optimum.npz")
        print(f"  best q of each image: {trained.folder / own.stem}-optimum.npz")
    for warning in gap.warnings:
        print(f"  warning: {warning}")
    if not largest:
        print(f"  {own.name}, beside another result: gap.json stays with {results.describe_entry(best)}")
    return 0


def name_gap_store(arguments: argparse.Namespace, trained: Any) -> Path:
    """Where finished images are kept: another question, or another model, has another file."""
    from bsvi.evaluation.passes import model_hash

    if arguments.save:
        words = f"step{trained.step}-k{arguments.k}-steps{arguments.steps}-seed{arguments.seed}"
        return trained.folder / f"gap-test-{words}-lambda.jsonl"
    old = trained.folder / "gap-test.jsonl"  # one name for all questions, of an earlier version
    asked = {"k": arguments.k, "seed": arguments.seed, "model": model_hash(trained.inference)}
    asked_for_first = read_header(old)
    climb = str(asked_for_first.get("climb"))
    if asked_for_first | asked == asked_for_first and climb.startswith(f"Climb(steps={arguments.steps},"):
        return old
    words = f"step{trained.step}-k{arguments.k}-steps{arguments.steps}-seed{arguments.seed}"
    return trained.folder / f"gap-test-{words}.jsonl"


def read_header(store: Path) -> dict[str, Any]:
    """The question in the first line of a store; empty where there is none to be read."""
    try:
        with open_to_read(store) as file:
            found = parse_json(file.readline(1 << 16)[9:])
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}
