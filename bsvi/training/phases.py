"""Phases: one run that learns by several methods in turn.

Weights, their moments in the optimiser, beta and the batches go on as in one run. A phase begins with its own buffer weights
as they are made, without moments, and with nothing seen of validation: bounds of two methods do not compare.
"""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from bsvi.objectives import Objective


@dataclass(frozen=True)
class Phase:
    """One objective of several, up to its last update, counted over the whole run."""

    name: str
    objective: Objective
    last: int


def phase_of(phases: list[Phase], update: int) -> Phase:
    """The phase in which an update (counted from 1) is made.

    >>> import bsvi
    >>> ends = {"vae": 8000, "bsvi-sir": 10_000}
    >>> phases = [Phase(name, bsvi.objective(name), last) for name, last in ends.items()]
    >>> [phase_of(phases, update).name for update in (0, 1, 8000, 8001, 10_000)]
    ['vae', 'vae', 'vae', 'bsvi-sir', 'bsvi-sir']
    """
    return next((phase for phase in phases if update <= phase.last), phases[-1])


def name_of(phase: Phase, phases: list[Phase]) -> dict[str, str]:
    """What a line of metrics says of the phase, where there are several."""
    return {"phase": phase.name} if len(phases) > 1 else {}


def check_phases(phases: list[Phase], steps: int) -> None:
    """ValueError unless the phases follow each other and end with the run."""
    ends = [0, *(phase.last for phase in phases)]
    if len(ends) == 1 or any(b <= a for a, b in pairwise(ends)) or ends[-1] != steps:
        raise ValueError(
            f"phases must end at rising updates, the last at settings.steps = {steps}, got {ends[1:]}; change one of them"
        )


def check_made(phases: list[Phase]) -> None:
    """Raise, with what to do, where an objective has weights whose shape only a first batch would tell."""
    if any(nn.parameter.is_lazy(p) for phase in phases for p in phase.objective.parameters()):
        raise ValueError(
            "the refinement's network does not know the width of lambda yet, so it could not be saved or resumed; say it: "
            "bsvi.objective(name, width=2 * latent)"
        )
