"""Buffered Stochastic Variational Inference (Shu, Bui, Whang, Ermon, AISTATS 2019): the public names.

Names are imported at first use, so that ``bsvi --help`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsvi.adapters.distributions import wrap
    from bsvi.beyond.end_to_end import EndToEnd
    from bsvi.beyond.updates import Network, Rates, group_parameters
    from bsvi.beyond.with_refinement import WithRefinement
    from bsvi.bounds import giwae, responsibilities
    from bsvi.buffer_weights import Last, Learned, Uniform, buffer_weight_average
    from bsvi.evaluation.ais import ais
    from bsvi.evaluation.certificate import certify
    from bsvi.evaluation.evaluate import evaluate
    from bsvi.evaluation.gap import amortization_gap
    from bsvi.evaluation.refine import refine
    from bsvi.evaluation.refine_anneal import refine_anneal
    from bsvi.methods import objective
    from bsvi.model import VAE, DiagonalGaussian, Model
    from bsvi.objectives import Estimate, Objective
    from bsvi.refinement import SVI, Amortized
    from bsvi.tables.methods import METHODS, Look, Method
    from bsvi.theta import AllDraws, LastDraw, Recomputed, Resampled
    from bsvi.training.loop import Training, train
    from bsvi.trajectory import Trajectory

__version__ = "0.1.0"

_HOME = {
    "giwae": "bounds",
    "responsibilities": "bounds",
    "Uniform": "buffer_weights",
    "Last": "buffer_weights",
    "Learned": "buffer_weights",
    "buffer_weight_average": "buffer_weights",
    "Model": "model",
    "VAE": "model",
    "DiagonalGaussian": "model",
    "Trajectory": "trajectory",
    "Amortized": "refinement",
    "SVI": "refinement",
    "EndToEnd": "beyond.end_to_end",
    "Network": "beyond.updates",
    "Rates": "beyond.updates",
    "group_parameters": "beyond.updates",
    "WithRefinement": "beyond.with_refinement",
    "AllDraws": "theta",
    "LastDraw": "theta",
    "Resampled": "theta",
    "Recomputed": "theta",
    "Objective": "objectives",
    "Estimate": "objectives",
    "METHODS": "tables.methods",
    "Look": "tables.methods",
    "Method": "tables.methods",
    "objective": "methods",
    "evaluate": "evaluation.evaluate",
    "amortization_gap": "evaluation.gap",
    "ais": "evaluation.ais",
    "certify": "evaluation.certificate",
    "refine_anneal": "evaluation.refine_anneal",
    "refine": "evaluation.refine",
    "train": "training.loop",
    "wrap": "adapters.distributions",
    "Training": "training.loop",
}

__all__ = [
    "METHODS",
    "SVI",
    "VAE",
    "AllDraws",
    "Amortized",
    "DiagonalGaussian",
    "EndToEnd",
    "Estimate",
    "Last",
    "LastDraw",
    "Learned",
    "Look",
    "Method",
    "Model",
    "Network",
    "Objective",
    "Rates",
    "Recomputed",
    "Resampled",
    "Training",
    "Trajectory",
    "Uniform",
    "WithRefinement",
    "ais",
    "amortization_gap",
    "buffer_weight_average",
    "certify",
    "evaluate",
    "giwae",
    "group_parameters",
    "objective",
    "refine",
    "refine_anneal",
    "responsibilities",
    "train",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name == "adapters":
        return import_module("bsvi.adapters")
    if name not in _HOME:
        raise AttributeError(f"module 'bsvi' has no attribute {name!r}; the public names are {', '.join(__all__)}")
    value = getattr(import_module(f"bsvi.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
