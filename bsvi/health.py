"""What one looks at while a model trains: the paper's training curves (Fig. 6), and a line when something looks wrong."""

from typing import Any

import torch
from torch import Tensor

from bsvi.bounds import giwae, responsibilities
from bsvi.buffer_weights import Uniform, buffer_weight_average
from bsvi.objectives import Estimate, Objective

ACTIVE = 0.01  # a latent is active if its mean's variance over examples exceeds this (Burda et al. 2015)


class Meter:
    """Averages since the last line, kept on the device: nothing waits for a number until the line is written."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def add(self, estimate: Estimate, norm: Tensor) -> None:
        t = estimate.trajectory
        with torch.no_grad():
            log_w = t.per_proposal()
            r = responsibilities(t.log_w, estimate.log_pi)
            values = {
                "bound": estimate.bound.mean(),
                "svi_0": log_w[0].mean(),
                "svi_k": log_w[-1].mean(),
                "bsvi_k": giwae(log_w, Uniform()(len(log_w)).to(log_w)).mean(),
                "kl": t.kl[-1].mean().double(),
                "reconstruction": -t.log_lik[-1].mean(),
                "ess": (1.0 / r.square().sum(0)).mean(),
                "nonfinite": torch.isinf(t.log_w).double().mean(),
                "grad_norm": norm.double(),
                "moved": (t.lambda_[-1] - t.lambda_[0]).norm(dim=-1).mean().double(),
            }
            self.sums = {name: value + self.sums.get(name, 0.0) for name, value in values.items()}
        self.steps += 1

    def line(self, model: Any, estimate: Estimate, objective: Objective) -> dict[str, Any]:
        """The averages as numbers, and what is read off the last batch; starts the next averages."""
        line: dict[str, Any] = {name: value.item() / self.steps for name, value in self.sums.items()}
        proposals = len(estimate.log_pi) // estimate.trajectory.samples
        pi = estimate.log_pi.exp().unflatten(0, (proposals, -1)).sum(1).log()
        line["buffer_weight_average"] = buffer_weight_average(pi) if proposals > 1 else 0.0
        line |= latents(model, estimate)
        self.sums, self.steps = {}, 0
        return line


def latents(model: Any, estimate: Estimate) -> dict[str, int]:
    """How many latents the last proposals use, of how many; nothing where the family does not tell its mean."""
    try:
        with torch.no_grad():
            mean = model.posterior(estimate.trajectory.lambda_[-1]).mean
    except NotImplementedError:
        return {}
    return {"active_units": int((mean.var(0) > ACTIVE).sum()), "latents": mean.shape[-1]} if len(mean) > 1 else {}


def problems(line: dict[str, Any]) -> list[str]:
    """One line for each thing that looks wrong in a line of metrics, with what to try. None of them is an error."""
    found = []
    at = f"step {line['step']}:"
    if line["svi_k"] < line["svi_0"] - 1.0 - 0.01 * abs(line["svi_0"]):
        found.append(
            f"{at} SVI-k ({line['svi_k']:.2f}) is below SVI-0 ({line['svi_0']:.2f}): the steps lead away (this is possible, "
            "see docs/theory.md); try a smaller svi.lr or svi.max_grad_norm"
        )
    if line["bsvi_k"] < line["svi_k"] - 1.0 - 0.01 * abs(line["svi_k"]):
        found.append(
            f"{at} BSVI-k is below SVI-k: early proposals are poor; a learned pi (bsvi-sir-pi) can look past them"
        )
    if line["nonfinite"] > 0:
        found.append(
            f"{at} {line['nonfinite']:.1%} of the weights are not finite and count as zero; try a smaller svi.lr"
        )
    if line["moved"] > 100:
        found.append(
            f"{at} SVI moves lambda by {line['moved']:.0f} on average; try a smaller svi.lr or svi.max_grad_norm"
        )
    if line.get("active_units") == 0 and line["beta"] == 1.0:
        found.append(
            f"{at} posterior collapse: no latent is active; try KL annealing (anneal.start 0.1, anneal.steps 5000)"
        )
    return found
