"""What a user gives to train(), checked in one place before anything is read or written."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from bsvi.training.phases import Phase, check_made


def check_arguments(model: Any, phases: list[Phase], batches: Any, valid: Any) -> None:
    """Raise, with what to do, where one of these cannot be trained, learned from, or gone through."""
    for phase in phases:
        if not (isinstance(phase.objective, nn.Module) and hasattr(phase.objective, "refinement")):
            raise TypeError(
                f"objective must be an Objective, got {type(phase.objective).__name__}; make one by its name: "
                'bsvi.objective("bsvi-sir", k=9)'
            )
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise TypeError(
            f"train needs a model that is a torch.nn.Module with parameters, got {type(model).__name__}; use bsvi.VAE(encoder, "
            "decoder) of modules"
        )
    check_made(phases)
    if not any(p.requires_grad for part in (model, *(phase.objective for phase in phases)) for p in part.parameters()):
        raise ValueError(
            f"all parameters of {type(model).__name__} are frozen; call requires_grad_() on what is to learn"
        )
    check_stream("batches", batches)
    if valid is not None:
        check_stream("valid", valid)


def check_stream(name: str, batches: Any) -> None:
    """Raise, with what to do, on what is no stream of batches; a tensor's rows or a dict's names are none."""
    if isinstance(batches, Tensor | Mapping) or hasattr(batches, "_fields"):
        raise TypeError(
            f"{name} must be many batches, got one {type(batches).__name__}; give a list of batches, or a loader: [x] learns "
            "from all examples at once"
        )
    if not callable(batches) and not isinstance(batches, Iterable):
        raise TypeError(
            f"{name} must be a list of batches, a loader or a function of the step, got {type(batches).__name__}"
        )
