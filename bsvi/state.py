"""All that a training run is made of, as tensors and JSON scalars, and back again: resuming is exact."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from bsvi.training import Looks

from bsvi.health import Meter


def capture(
    model: nn.Module,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    looks: "Looks",
    seconds: float,
    best: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and scalars of parameters, BatchNorm buffers, pi, optimiser, random state, running averages, early stopping."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"objective.{name}": value for name, value in objective.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    tensors |= {f"meter.{name}": value for name, value in meter.sums.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors |= {f"random.cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    scalars = {"seconds": seconds, "meter_steps": meter.steps, "looks": {k: str(v) for k, v in vars(looks).items()}}
    return tensors, scalars


def restore(
    saved: tuple[dict[str, Tensor], dict[str, Any]],
    model: nn.Module,
    objective: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    looks: "Looks",
) -> tuple[int, float, dict[str, Tensor]]:
    """Put a captured state back in place; returns step, seconds so far and the best weights."""
    tensors, scalars = saved
    model.load_state_dict(part(tensors, "model."))
    objective.load_state_dict(part(tensors, "objective."))
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in part(tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        states.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    device = next(model.parameters()).device
    meter.sums = {name: value.to(device) for name, value in part(tensors, "meter.").items()}
    meter.steps = int(scalars["meter_steps"])
    looks.best, looks.best_step, looks.since = (
        float(scalars["looks"]["best"]),
        int(scalars["looks"]["best_step"]),
        int(scalars["looks"]["since"]),
    )
    torch.set_rng_state(tensors["random.cpu"])
    cuda = part(tensors, "random.cuda.")
    if cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([cuda[str(i)] for i in range(len(cuda))])
    best = {name: value.to(device) for name, value in part(tensors, "best.").items()}
    return int(scalars["step"]), float(scalars["seconds"]), best


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
