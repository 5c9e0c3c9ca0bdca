"""Images one can trust: loaders, download, and batches that are functions of (seed, epoch, example)."""

from bsvi.data.dataset import Dataset, Split
from bsvi.data.digits import load_digits

__all__ = ["Dataset", "Split", "load_digits"]
