"""What one looks at while a model trains: the paper's training curves (Fig. 6), a line when something looks wrong, and the
check that stops before NaN or infinity reaches a parameter."""

import math
from typing import Any

import torch
from torch import Tensor

from bsvi.buffer_weights import buffer_weight_average
from bsvi.examples import count, spoilt
from bsvi.objectives import Estimate, Objective
from bsvi.system.errors import NotFinite
from bsvi.training.team import Problem, Team

ACTIVE = 0.01  # a latent is active if its mean's variance over examples exceeds this (Burda et al. 2015)
COLLAPSED = 0.002  # nats of KL per latent, below which z tells the decoder nothing
NAMES = ("bound", "svi_0", "svi_k", "bsvi_k", "kl", "reconstruction", "ess", "nonfinite", "grad_norm", "moved")
ALONE = Team()


class Meter:
    """Averages since the last line, kept on the device: nothing waits for a number until the line is written."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # of ``average_batch``
        self.steps = 0
        self.decoder_calls = 0  # of the whole run, per example

    def add(self, estimate: Estimate, norm: Tensor) -> None:
        self.take(average_batch(estimate, norm), estimate.decoder_calls)

    def take(self, row: Tensor, decoder_calls: int = 0) -> None:
        self.sums = row if self.sums is None else self.sums + row
        self.steps += 1
        self.decoder_calls += decoder_calls

    def line(self, model: Any, estimate: Estimate, team: Team = ALONE) -> dict[str, Any]:
        """The averages as numbers, and what is read off the last batch; starts the next averages."""
        sums = [] if self.sums is None else self.sums.tolist()
        line: dict[str, Any] = {name: value / self.steps for name, value in zip(NAMES, sums, strict=True)}
        proposals = len(estimate.log_pi) // estimate.trajectory.samples
        line["bsvi_k"] -= math.log(proposals)
        line["reconstruction"] *= -1.0
        pi = estimate.log_pi.exp().unflatten(0, (proposals, -1)).sum(1)
        line["buffer_weight_average"] = buffer_weight_average(pi.log()) if proposals > 1 else 0.0
        line["ess_of_pi"] = 1.0 / estimate.log_pi.exp().square().sum().item()  # what ess would be with equal weights
        line |= count_latents(model, estimate, team)
        self.sums, self.steps = None, 0
        return line


def step_sizes(objective: Any) -> dict[str, float]:
    """The learned rate of each step, rate_1 to rate_k: its geometric mean over the coordinates of lambda."""
    update: Any = getattr(objective.refinement, "update", None)
    if not getattr(update, "learned", False):
        return {}
    return {f"rate_{i}": rate for i, rate in enumerate(update.log_rates.detach().mean(-1).exp().tolist(), 1)}


def average_batch(estimate: Estimate, norm: Tensor) -> Tensor:
    """Each of NAMES, averaged over the batch; the bound of equal weights without its 1 / (k + 1)."""
    t = estimate.trajectory
    with torch.no_grad():  # few operations: each costs some microseconds in every step
        log_w = t.log_w if t.samples == 1 else t.per_proposal()
        squares = ((estimate.log_pi[:, None] + t.log_w) * 2).logsumexp(0)
        rows = (
            estimate.bound,
            log_w[0],
            log_w[-1],
            log_w.logsumexp(0),
            t.kl[-1],
            t.log_lik[-1],
            (estimate.bound * 2 - squares).exp_(),  # 1 / sum r^2
            t.log_w.isinf().double().mean(0),
            norm.double().expand(len(estimate.bound)),
            (t.lambda_[-1] - t.lambda_[0]).norm(dim=-1).double(),
        )
        return torch.stack(rows).mean(1)


def count_latents(model: Any, estimate: Estimate, team: Team = ALONE) -> dict[str, Any]:
    """How many latents the last proposals use, of how many, and the KL of each; nothing where the family tells no mean."""
    try:
        with torch.no_grad():
            mean = model.posterior(team.gather(estimate.trajectory.lambda_[-1])).mean
            mean = mean.reshape(len(mean), -1)  # a scalar latent too
    except (NotImplementedError, AttributeError, TypeError):  # TypeError: a family that needs x
        return {}
    if len(mean) < 2:
        return {}
    per_latent = team.gather(estimate.trajectory.kl[-1]).mean().item() / mean.shape[1]
    return {
        "active_units": int((mean.var(0) > ACTIVE).sum()),
        "latents": mean.shape[1],
        "kl_per_latent": per_latent,
    }


def list_problems(line: dict[str, Any]) -> list[str]:
    """One line for each thing that looks wrong in a line of metrics, with what to try. None of them is an error."""
    found = []
    at = f"step {line['step']}:"
    svi_0, svi_k, bsvi_k = line["svi_0"], line["svi_k"], line["bsvi_k"]
    if svi_k < svi_0 - 1.0 - 0.01 * abs(svi_0):
        found.append(
            f"{at} SVI-k ({svi_k:.2f}) is below SVI-0 ({svi_0:.2f}): the steps lead away (this is possible, "
            "see docs/theory.md); try a smaller svi.lr or svi.max_grad_norm"
        )
    if bsvi_k < svi_k - 1.0 - 0.01 * abs(svi_k):
        found.append(
            f"{at} BSVI-k ({bsvi_k:.2f}) is below SVI-k ({svi_k:.2f}): early proposals are poor; a learned pi "
            "(bsvi-sir-pi) can look past them"
        )
    if line["nonfinite"] > 0:
        found.append(
            f"{at} {line['nonfinite']:.1%} of the weights are not finite and count as zero; try a smaller svi.lr"
        )
    if not line["moved"] <= 100:
        found.append(
            f"{at} exploding SVI steps: they move lambda by {line['moved']:.0f} on average; try a smaller svi.lr or "
            "svi.max_grad_norm"
        )
    if line["ess"] < 1.01 and line.get("ess_of_pi", 0.0) > 2:
        found.append(
            f"{at} one draw carries the whole buffer (effective size {line['ess']:.2f} of {line['ess_of_pi']:.1f}): the "
            "others teach nothing; try a smaller svi.lr, or fewer svi.steps"
        )
    if line["beta"] == 1.0 and (line.get("active_units") == 0 or line.get("kl_per_latent", 1.0) < COLLAPSED):
        found.append(
            f"{at} posterior collapse: {line['active_units']} of {line['latents']} latents are active, KL "
            f"{line['kl_per_latent']:.4f} nats per latent; try KL annealing (anneal.start 0.1, anneal.steps 5000)"
        )
    return found


def check_batch(step: int, x: Any, ids: Any, model: Any, split: str = "training") -> None:
    """Raise NotFinite with the ids of the examples of x that hold NaN or infinity, if there are any."""
    if text := describe_bad_input(x, ids, model, split):
        raise NotFinite(f"step {step}: {text}")


def describe_bad_input(x: Any, ids: Any, model: Any, split: str = "training") -> str:
    """The examples of x that hold NaN or infinity, as a line; empty if there are none."""
    missing = getattr(model, "nan_is_missing", False)
    if (bad := spoilt(x, missing)) is None:
        return ""
    what = "infinity" if missing else "NaN or infinity"
    return f"x holds {what} in {int(bad.sum())} of {count(x)} {split} examples, {list_ids(ids, bad)}; clean the data"


def find_problem(estimate: Estimate, norm: Tensor, model: Any, objective: Objective, x: Any, ids: Any) -> Problem:
    """What is not finite, naming the tensor and the batch ids, before the optimiser sees it; None if all is well.

    It comes from elsewhere where this batch's bounds are fine and only the gradient, which all processes share, is not.
    """
    fine = torch.isfinite(estimate.bound).all() & torch.isfinite(norm)
    for parameter in objective.parameters():
        fine = fine & torch.isfinite(parameter).all()
        if parameter.grad is not None:
            fine = fine & torch.isfinite(parameter.grad).all()
    if fine:  # the one moment of a step that waits for the device
        return None
    text = describe_bad_input(x, ids, model) or find_nonfinite(estimate, model, objective, ids)
    return bool(torch.isfinite(estimate.bound).all()), text


def find_nonfinite(estimate: Estimate, model: Any, objective: Objective, ids: Any) -> str:
    """The first tensor on the way from parameters to gradients that is not finite, and what to try."""
    named_parameters = [(name, p) for name, p in model.named_parameters()]
    named_parameters += [(f"the objective's {name}", p) for name, p in objective.named_parameters()]
    for name, parameter in named_parameters:
        if not torch.isfinite(parameter).all():
            return f"parameter {name} is not finite, {list_ids(ids)}; lower optim.lr"
    t = estimate.trajectory
    if not torch.isfinite(t.lambda_[0]).all():
        bad = ~torch.isfinite(t.lambda_[0]).all(-1)
        return f"the encoder's output is not finite for {list_ids(ids, bad)}; look at these examples, or lower optim.lr"
    bad = ~torch.isfinite(estimate.bound)
    if bad.any():
        what = "the bound" if torch.isfinite(t.log_lik[:, bad]).any() else "the decoder's output ln p(x|z)"
        return f"{what} is not finite in any draw for {list_ids(ids, bad)}; look at these examples, or lower svi.lr or optim.lr"
    for name, parameter in named_parameters:
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name} is not finite, {list_ids(ids)}; lower optim.lr, or go on with another seed"
    return f"the gradient's norm overflows, {list_ids(ids)}; lower optim.lr"


def list_ids(ids: Any, rows: Tensor | None = None, most: int = 60) -> str:
    """'batch ids 3, 17' for the given rows of a batch, or all; by their place in the batch where it has no ids.

    Ids are a tensor, or any sequence: names of files, say.
    """
    places = None if rows is None else rows.cpu().nonzero().flatten().tolist()
    if ids is None:
        if places is None:
            return "batch without ids"
        word, listed = "rows of the batch", places
    else:
        named = ids.flatten().tolist() if hasattr(ids, "flatten") else list(ids)
        fits = places is not None and all(place < len(named) for place in places)
        word, listed = "batch ids", [named[place] for place in places or ()] if fits else named
    return f"{word} " + ", ".join(map(str, listed[:most])) + (f", ... ({len(listed)})" if len(listed) > most else "")
