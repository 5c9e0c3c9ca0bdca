"""Images one can trust: loaders, download, and batches that are functions of (seed, epoch, example)."""

from bsvi.data.batches import Batch, evaluation_batches, training_batches
from bsvi.data.dataset import Dataset, Split
from bsvi.data.digits import load_digits

__all__ = ["Batch", "Dataset", "Split", "evaluation_batches", "load_digits", "training_batches"]
