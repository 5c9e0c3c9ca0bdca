"""Images one can trust: loaders, download, and batches that are functions of (seed, epoch, example)."""

from bsvi.data.batches import EVALUATION_SEED, Batch, evaluation_batches, training_batches
from bsvi.data.catalogue import fetch, list_datasets, load
from bsvi.data.dataset import SPLIT_SEED, Dataset, Split
from bsvi.data.digits import load_digits
from bsvi.data.download import Unavailable
from bsvi.data.inspection import check
from bsvi.data.integrity import BadFile

__all__ = [
    "EVALUATION_SEED",
    "SPLIT_SEED",
    "BadFile",
    "Batch",
    "Dataset",
    "Split",
    "Unavailable",
    "check",
    "evaluation_batches",
    "fetch",
    "list_datasets",
    "load",
    "load_digits",
    "training_batches",
]
