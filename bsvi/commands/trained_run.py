"""What the verbs that take a trained run share: flags, the run with its images, sizes of batches."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bsvi.commands.bar import Bar
from bsvi.commands.evaluate_estimators import LEAST
from bsvi.experiments import batching
from bsvi.system import runtime

LARGEST = 1 << 63  # whole numbers beyond this fit no tensor


def add_common(parser: argparse.ArgumentParser) -> None:
    """What evaluate and gap share."""
    parser.add_argument(
        "--batch-size", type=int, help="images at once (default: as many as take seconds); no number depends on it"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the noise, which belongs to the image and not to its batch"
    )
    add_data(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: all cores")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto", help="compile the decoder")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Where the images of a run are now; their hash is compared."""
    parser.add_argument("--data-dir", type=Path, help="folder of data files (default $BSVI_DATA_DIR, else a cache)")
    parser.add_argument(
        "--data.name", dest="data_name", metavar="PATH", help="own images that have moved: their new place"
    )


def prepare(arguments: argparse.Namespace, name: str, passes: Callable[[Any], int]) -> tuple[Any, Any, Bar, Any]:
    """The trained run, its images, a progress bar, and the run's SVI settings; ``passes(svi)`` is what an image costs."""
    from bsvi.experiments.trained import load_trained
    from bsvi.refinement import SVI

    check_numbers(arguments)
    started = runtime.start(runtime.Runtime(arguments.device, arguments.threads, arguments.compile))
    trained = load_trained(arguments.run, started.device)
    runtime.compile_decoder(trained.model.decoder, started.compile)
    svi = SVI(**trained.experiment.svi.model_dump())
    if arguments.batch_size is None:
        arguments.batch_size = 100 if svi.clip == "batch" else choose_size(passes(svi), arguments, trained)
    split = getattr(trained.data(arguments.data_dir, arguments.data_name), name)
    if arguments.examples is not None:
        split = split.take(arguments.examples)
    return trained, split, Bar(f"{trained.folder.name} {name}", len(split), arguments.quiet), svi


def print_start(trained: Any) -> None:
    """Say where every estimate starts, if this is not the encoder alone."""
    if trained.steps:
        print(
            f"  starts at the end of the {trained.steps} steps that were trained with the model; amortized_elbo and IWAE are "
            "those of q there, not of the encoder's own q"
        )


def check_numbers(arguments: argparse.Namespace) -> None:
    """Raise ValueError for numbers that make no sense, before any work is done."""
    for flag, least in (
        ("examples", 1),
        ("batch_size", 1),
        ("k", 1),
        ("steps", 1),
        ("worst", 1),
        ("ais", 0),
        ("certify", 0),
        ("passes", LEAST),
        ("iwae", 1),
    ):
        value = getattr(arguments, flag, None)
        for each in value if isinstance(value, list) else [value]:
            if each is not None and not least <= each < LARGEST:
                raise ValueError(
                    f"--{flag.replace('_', '-')} must be a whole number from {least} to 2**63 - 1, got {each}"
                )
    if not 0 <= arguments.seed < LARGEST:
        raise ValueError(f"--seed must be a whole number from 0 to 2**63 - 1, got {arguments.seed}")


def choose_size(passes: int, arguments: argparse.Namespace, trained: Any) -> int:
    """Images of a batch that ends within seconds."""
    threads = arguments.threads or runtime.count_cores() // getattr(arguments, "processes", 1)
    image = trained.model.decoder.image
    return batching.choose_batch_size(trained.experiment.net, image, passes, threads, trained.device.type)


def make_batches(split: Any, size: int, device: Any) -> Any:
    from bsvi.data import evaluation_batches

    return evaluation_batches(split, batch_size=size, device=device)
