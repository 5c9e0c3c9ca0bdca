"""A look at the validation images: the method's own bound, always with the same noise, in eval mode."""

from typing import Any

import torch

from bsvi.examples import Pick, count, unpack
from bsvi.objectives import BadInput, Objective
from bsvi.parameters import in_eval_mode
from bsvi.system.signals import Signals
from bsvi.training.health import ALONE, check_batch
from bsvi.training.streams import BatchStream
from bsvi.training.team import Team

VALIDATION_SEED = 2019  # the noise of every look at the validation images


def validate(
    model: Any,
    objective: Objective,
    valid: BatchStream,
    step: int = 0,
    signals: Signals | None = None,
    team: Team = ALONE,
    *,
    batch: Pick | None = None,
    ids: Pick | None = None,
) -> tuple[float, Any] | None:
    """The method's own bound at beta = 1 over all validation batches, always with the same noise; and the first batch.

    Of several processes each takes its part of every batch.
    None where a signal came in between: a look at many images can take longer than the time one has left.
    """
    total, examples, first = 0.0, 0, None
    device = next(model.parameters()).device
    with in_eval_mode(model), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(VALIDATION_SEED)
        for given in valid(0) if callable(valid) else valid:
            if signals is not None and team.agree_to_stop(signals.received):
                return None
            x, names = unpack(given, batch, ids)
            first = given if first is None else first
            try:
                total += team.sum_bounds(model, objective, x)
            except BadInput:
                check_batch(step, x, names, model, "validation")
                raise
            examples += count(x)
    if examples == 0:
        raise ValueError(
            "there are no validation batches; give a list or a function that can be read again, or valid=None"
        )
    return team.sum_over_processes(total) / examples, first
