"""Phases: one run that learns by several methods in turn.

Weights, their moments in the optimiser, beta and the batches go on as in one run. A phase begins with its own buffer weights
as they are made, without moments, and with nothing seen of validation: bounds of two methods do not compare.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from bsvi.objectives import Objective
from bsvi.training.state import make_optimizer


@dataclass(frozen=True)
class Phase:
    """One objective of several, up to its last update, counted over the whole run."""

    name: str
    objective: Objective
    last: int


def phase_of(phases: list[Phase], update: int) -> Phase:
    """The phase in which an update (counted from 1) is made.

    >>> phases = [Phase(name, None, last) for name, last in (("vae", 8000), ("bsvi-sir", 10_000))]
    >>> [phase_of(phases, update).name for update in (0, 1, 8000, 8001, 10_000)]
    ['vae', 'vae', 'vae', 'bsvi-sir', 'bsvi-sir']
    """
    return next((phase for phase in phases if update <= phase.last), phases[-1])


def hand_over(optimizer: torch.optim.Optimizer, model: nn.Module, objective: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the next phase: the model's moments go on, and the objective's parameters are new to it."""
    following = make_optimizer(model, objective, optimizer.param_groups[0]["lr"])
    following.state.update({p: optimizer.state[p] for p in model.parameters() if p in optimizer.state})
    return following


def check_phases(phases: list[Phase], steps: int) -> None:
    """ValueError unless the phases follow each other and end with the run."""
    ends = [0, *(phase.last for phase in phases)]
    if len(ends) == 1 or any(b <= a for a, b in pairwise(ends)) or ends[-1] != steps:
        raise ValueError(
            f"phases must end at rising updates, the last at settings.steps = {steps}, got {ends[1:]}; change one of them"
        )
