"""Further estimators of ln p(x) for ``bsvi evaluate``: --estimator, --passes, --certify."""

import argparse
from pathlib import Path
from typing import Any

from bsvi.commands.bar import Bar
from bsvi.tables.estimators import ESTIMATORS, list_further

PASSES, LEAST = 1000, 200  # what BSVI-500 costs, and what a climb and a few temperatures take


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_estimators(parser)
    parser.add_argument(
        "--certify",
        type=int,
        default=0,
        metavar="N",
        help="how far refine-anneal can be off: bounds from both sides of N images drawn from the model itself",
    )


def add_estimators(parser: argparse.ArgumentParser) -> None:
    """What evaluate and sweep share."""
    parser.add_argument(
        "--estimator",
        nargs="+",
        choices=list_further(),
        default=[],
        metavar="NAME",
        help=f"further estimators of ln p(x), of all images: {', '.join(list_further())}",
    )
    parser.add_argument(
        "--passes",
        type=int,
        default=PASSES,
        metavar="N",
        help="of the decoder for one image by refine-anneal: 1000 cost as much as BSVI-500, 10000 are tighter",
    )


def store_path(arguments: argparse.Namespace, trained: Any, name: str) -> Path:
    """Where an estimator keeps finished images: one file for each question."""
    seed = f"-seed{arguments.seed}" if arguments.seed else ""
    return trained.folder / f"{name}-{arguments.split}-step{trained.step}{seed}.jsonl"


def count_passes(name: str, arguments: argparse.Namespace) -> int:
    return ESTIMATORS[name].cost(arguments.passes)


def estimate(name: str, arguments: argparse.Namespace, trained: Any, batches: Any, store: Path, progress: Any) -> Any:
    """What one estimator says of these batches."""
    model = trained.inference if ESTIMATORS[name].by_passes else trained.model
    options = {"seed": arguments.seed, "store": store, "progress": progress}
    return ESTIMATORS[name].run(model, batches, arguments.passes, **options)


def certify(arguments: argparse.Namespace, trained: Any, split: Any) -> dict[str, Any]:
    """Draw images from the model, bound them from both sides; prints the sentence and returns what scores.json keeps."""
    import torch

    from bsvi.data import evaluation_batches
    from bsvi.evaluation.certificate import certify as bracket

    name = ESTIMATORS["refine-anneal"].name(arguments.passes)
    like = next(iter(evaluation_batches(split, batch_size=1, device=trained.device))).x

    def sample(z: Any) -> Any:
        generator = torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))
        return trained.model.decoder.sample(z, generator=generator)

    with Bar(f"{trained.folder.name} certificate", arguments.certify, arguments.quiet) as bar:
        certificate = bracket(
            trained.inference,
            like,
            sample,
            images=arguments.certify,
            passes=arguments.passes,
            seed=arguments.seed,
            batch_size=min(arguments.certify, 50),
            store=store_path(arguments, trained, f"certificate-{name}-n{arguments.certify}"),
            progress=bar.update,
        )
    print(f"  certificate of {name}: {certificate}")
    for warning in certificate.warnings:
        print(f"    warning: {warning}")
    return {"estimator": name, **certificate.summary()}
