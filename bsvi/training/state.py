"""All that a training run is made of, as tensors and JSON scalars, and back again: resuming is exact."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from bsvi.beyond.updates import group_parameters
from bsvi.system.clock import Stopwatch
from bsvi.training.health import NAMES, Meter, NotFinite

BEST = ("best.", "best_objective.")  # before the names of the best weights, and of pi at the same step
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # of AMSGrad, beside its count of steps

State = tuple[dict[str, Tensor], dict[str, Any]]


class Misfit(ValueError):
    """A checkpoint that is whole but of another model or optimiser; the message names the keys."""


class ValidationHistory:
    """The looks at the validation images so far: the best bound, its step, how many have passed since, the latest one's step."""

    def __init__(self) -> None:
        self.best, self.best_step, self.since, self.latest = -math.inf, 0, 0, 0

    def take(self, step: int, bound: float) -> bool:
        """Note a bound; returns whether it is the best so far. NaN never is."""
        self.latest = step
        if bound > self.best:
            self.best, self.best_step, self.since = bound, step, 0
            return True
        self.since += 1
        return False

    def begin_anew(self) -> None:
        """Forget the bounds, as another method's do not compare with them."""
        self.best, self.best_step, self.since = -math.inf, 0, 0

    def is_exhausted(self, patience: int) -> bool:
        return 0 < patience <= self.since


def make_optimizer(model: nn.Module, objective: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """AMSGrad over theta, phi, pi and learned rates, in one pass over each tensor where torch has that."""
    groups = group_parameters(model, objective, lr)
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for g in groups for p in g["params"])
    return torch.optim.Adam(groups, lr=lr, amsgrad=True, fused=fused)


class Best:
    """The weights of the best step and pi of the same step, as they belong together; empty before the first look."""

    def __init__(self, tensors: dict[str, Tensor] | None = None) -> None:
        self.tensors = tensors or {}  # by their names in a checkpoint

    @classmethod
    def of(cls, model: nn.Module, objective: nn.Module) -> "Best":
        """Copies of what there is now."""
        kept = {f"{BEST[0]}{name}": value.detach().clone() for name, value in model.state_dict().items()}
        pi = {f"{BEST[1]}{name}": value.detach().clone() for name, value in objective.state_dict().items()}
        return cls(kept | pi)

    def __bool__(self) -> bool:
        return bool(self.tensors)

    def load_into(self, model: nn.Module, objective: nn.Module) -> None:
        """Into the model, and into the objective unless the checkpoint is too old to have it."""
        model.load_state_dict(select_prefix(self.tensors, BEST[0]))
        if not self.lacks_pi(objective):
            objective.load_state_dict(select_prefix(self.tensors, BEST[1]))

    def lacks_pi(self, objective: nn.Module) -> bool:
        """Whether this comes from an older checkpoint, which had the best weights without pi."""
        return bool(self and objective.state_dict() and not select_prefix(self.tensors, BEST[1]))

    def to_model_file(self, with_pi: bool = True) -> dict[str, Tensor]:
        """What model.safetensors holds: the weights by their own names, and the objective's (pi) as ``objective.NAME``."""
        pi = {f"objective.{name}": value for name, value in select_prefix(self.tensors, BEST[1]).items() if with_pi}
        return pi | select_prefix(self.tensors, BEST[0])


class TrainingState:
    """All that a training run is made of: it captures itself as tensors and JSON scalars, and restores itself from them.

    Parameters, BatchNorm buffers, pi, optimiser, random state, running averages, early stopping, the best weights, the step and
    the seconds so far.

    Args:
        model: what is trained.
        objective: what it is trained by; ``hand_over`` goes on with another.
        lr: the rate of AMSGrad.
    """

    def __init__(self, model: nn.Module, objective: nn.Module, lr: float = 1e-3) -> None:
        self.model, self.objective = model, objective
        self.optimizer = make_optimizer(model, objective, lr)
        self.meter, self.looks, self.best = Meter(), ValidationHistory(), Best()
        self.step, self.watch = 0, Stopwatch()
        self.spent = 0.0  # seconds of updates, without validation and saving
        self.device = next(model.parameters()).device
        self.masks = find_infinite(model.state_dict())  # buffers may hold infinity on purpose

    def capture(self) -> State:
        """Everything there is to save; raises NotFinite where it is spoilt, as no checkpoint may hold that."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"objective.{name}": value for name, value in self.objective.state_dict().items()}
        tensors |= self.best.tensors
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        bad = find_infinite(tensors) - {f"{part}.{name}" for part in ("model", "best") for name in self.masks}
        if bad:
            raise NotFinite(f"step {self.step}: {', '.join(sorted(bad)[:5])} not finite, so not saved; lower optim.lr")
        if self.meter.steps:
            tensors["meter"] = self.meter.sums
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":  # each of several processes has another device, and the same state
            tensors["random.cuda.0"] = torch.cuda.get_rng_state(self.device)
        # numbers as text where they may be infinite, which JSON has no word for
        scalars = {
            "seconds": self.watch.seconds,
            "spent": self.spent,
            "meter_steps": self.meter.steps,
            "decoder_calls": self.meter.decoder_calls,
            "looks": {k: str(v) for k, v in vars(self.looks).items()},
        }
        return tensors, scalars

    def restore(self, saved: State) -> None:
        """Put a captured state, with its step, back in place. A Misfit changes nothing."""
        tensors, scalars = saved
        self.check_fit(tensors)
        try:
            step, seconds, meter_steps = int(scalars["step"]), float(scalars["seconds"]), int(scalars["meter_steps"])
            if meter_steps and "meter" not in tensors:
                raise ValueError("no averages")
            looks = {name: type(value)(scalars["looks"][name]) for name, value in vars(self.looks).items()}
            older = step * getattr(self.objective, "decoder_calls", 0)  # older checkpoints do not count them
            calls = int(scalars.get("decoder_calls", older))
            spent = float(scalars.get("spent", 0.0))
            if math.isnan(looks["best"]) or not (0 <= seconds < math.inf and 0 <= spent < math.inf):
                raise ValueError("a number out of range")
            if min(step, meter_steps, looks["since"], calls) < 0:
                raise ValueError("a number out of range")
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise Misfit(f"the checkpoint's scalars are not those of a training state ({error!r:.80})") from None

        self.model.load_state_dict(select_prefix(tensors, "model."))
        self.objective.load_state_dict(select_prefix(tensors, "objective."))
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in select_prefix(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            states.setdefault(int(index), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        device = self.device
        self.meter.steps, self.meter.sums = meter_steps, tensors["meter"].to(device) if meter_steps else None
        self.meter.decoder_calls = calls
        vars(self.looks).update(looks)
        self.best = Best({name: value.to(device) for name, value in tensors.items() if name.startswith(BEST)})
        self.step, self.watch, self.spent = step, Stopwatch(seconds), spent
        self.masks = find_infinite(self.model.state_dict())
        torch.set_rng_state(tensors["random.cpu"])
        if device.type == "cuda" and "random.cuda.0" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda.0"], device)

    def note_bound(self, bound: float) -> bool:
        """Note a bound on the validation images, and keep the weights if it is the best so far; returns whether it is."""
        improved = self.looks.take(self.step, bound)
        if improved:
            self.best = Best.of(self.model, self.objective)
        return improved

    def line(self, split: str, **values: Any) -> dict[str, Any]:
        """A line of metrics: where the run stands, and these values."""
        return {"split": split, "step": self.step, "seconds": self.watch.seconds, "spent": self.spent, **values}

    def check_fit(self, tensors: dict[str, Tensor]) -> None:
        """Raise Misfit, naming the keys, unless these tensors can be restored."""
        check_fit(tensors, self.model, self.objective, self.optimizer)

    def hand_over(self, objective: nn.Module) -> None:
        """Go on with another objective: the model's moments stay, the objective's parameters begin without.

        The bounds of two objectives do not compare, so no look has been taken yet, and no weights are the best.
        """
        moments, lr = self.optimizer.state, self.optimizer.param_groups[0]["lr"]
        self.objective, self.optimizer = objective, make_optimizer(self.model, objective, lr)
        self.optimizer.state.update({p: moments[p] for p in self.model.parameters() if p in moments})
        self.looks.begin_anew()
        self.best = Best()


def check_fit(
    tensors: dict[str, Tensor], model: nn.Module, objective: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Raise Misfit, naming the keys, unless every tensor is there with the shape and type that it will be put into."""
    must = {f"model.{name}": value for name, value in model.state_dict().items()}
    must |= {f"objective.{name}": value for name, value in objective.state_dict().items()}
    must["random.cpu"] = torch.get_rng_state()
    may = Best.of(model, objective).tensors
    may["meter"] = torch.zeros(len(NAMES), dtype=torch.float64)
    for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        may |= {f"optimizer.{index}.{name}": parameter for name in MOMENTS}
        may[f"optimizer.{index}.step"] = torch.zeros(())
        if any(name.startswith(f"optimizer.{index}.") for name in tensors):  # one that has no gradient has no state
            must |= {name: may[name] for name in may if name.startswith(f"optimizer.{index}.")}
    for prefix in BEST:
        if any(name.startswith(prefix) for name in tensors):
            must |= {name: value for name, value in may.items() if name.startswith(prefix)}
    known = {**may, **must}
    complaints = [f"{name} is missing" for name in must if name not in tensors]
    complaints += [
        f"{name} is unknown" for name in tensors if name not in known and not name.startswith("random.cuda.")
    ]
    for name in tensors.keys() & known.keys():
        got, want = tensors[name], known[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            complaints.append(f"{name} is {describe_tensor(got)}, not {describe_tensor(want)}")
    if complaints:
        rest = f"; and {len(complaints) - 6} more" if len(complaints) > 6 else ""
        raise Misfit(
            f"the checkpoint does not fit this model and optimiser: {'; '.join(sorted(complaints)[:6])}{rest}; "
            "use the configuration that made it, or another run folder"
        )


def describe_tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def select_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def size_limit(model: nn.Module, objective: nn.Module) -> int:
    """More bytes than a checkpoint of this model ever has: weights, best weights, three moments, and room for the rest."""
    held = [*model.state_dict().values(), *objective.state_dict().values()]
    return 8 * sum(value.numel() * value.element_size() for value in held) + (16 << 20)


def find_infinite(tensors: dict[str, Tensor]) -> set[str]:
    """The names of the floating-point tensors that hold NaN or infinity."""
    return {name for name, value in tensors.items() if value.is_floating_point() and not torch.isfinite(value).all()}
