"""The likelihoods of pixels: what a decoder's output map means, one row each. Imports no torch.

A run's config.json names its likelihood, so that a trained model is built again as it was.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bsvi.tables.table import Table, later


@dataclass(frozen=True)
class Likelihood:
    """One row.

    make    returns a module with ``log_prob(x, params)``, ``sample(params, noise)`` and ``mean(params)``
    about   what the pixels are, in a few words
    binary  whether pixels are 0 or 1
    """

    make: Callable[[], Any]
    about: str = ""
    binary: bool = False


LIKELIHOODS: Table[Likelihood] = Table(
    "likelihood",
    {
        "bernoulli": Likelihood(later("bsvi.nets.likelihoods:Bernoulli"), "0/1 pixels", binary=True),
        "logistic": Likelihood(later("bsvi.nets.likelihoods:DiscretisedLogistic"), "256 grey levels"),
    },
)
