"""How a trained refinement makes its step from lambda_i to lambda_{i+1}: learned rates, or a network.

A module with ``begin(lambda_)``, what it remembers before the first step, and a call that returns lambda_{i+1} and what it
remembers. It may use anything computed from x and earlier draws (Theorem 1), and never the weights of the draws it averages.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.lazy import LazyModuleMixin

from bsvi.direct import Ascent
from bsvi.draws import each_block
from bsvi.refinement import SVI
from bsvi.tables.methods import RATES_LR

TINY = 1e-12  # added to a norm, so that a gradient of zero has a derivative
KEPT = 2.0  # the gate's first logit: 88% of the old lambda


class Rates(nn.Module):
    """SVI's step with rates of its own: v <- momentum v + clip(g), lambda <- lambda + rho_i v.

    ln rho is trained by the bound, from the SVI rate on; one for each step, and with ``width`` for each coordinate of lambda too.

    Args:
        svi: the first rate, momentum and clipping.
        learned: whether the rates are trained; else they stay.
        width: how many numbers lambda has per example; 1 for one rate per step.
        optim_lr: the optimiser's rate for ln rho, which ``group_parameters`` hands on.

    Example:
        >>> Rates(SVI(steps=3, lr=0.1), width=4).rates().shape
        torch.Size([3, 4])
    """

    def __init__(self, svi: SVI, learned: bool = True, width: int = 1, optim_lr: float = RATES_LR) -> None:
        super().__init__()
        self.svi, self.learned, self.optim_lr = svi, learned, optim_lr
        if learned:
            self.log_rates = nn.Parameter(torch.full((svi.steps, width), math.log(svi.lr)))

    def change(self, width: int | None, learned: bool | None) -> "Rates":
        return Rates(self.svi, self.learned if learned is None else learned, width or 1, self.optim_lr)

    def extra_repr(self) -> str:
        return f"learned={self.learned}"

    def rates(self) -> Tensor:
        """rho, (steps, width)."""
        return self.log_rates.exp() if self.learned else torch.full((self.svi.steps, 1), self.svi.lr)

    def begin(self, lambda_: Tensor) -> Tensor:
        return torch.zeros_like(lambda_)

    def forward(self, i: int, lambda_: Tensor, gradient: Tensor, state: Tensor, q: Any) -> tuple[Tensor, Tensor]:
        velocity = self.svi.momentum * state + self.clipped(gradient, q)
        return lambda_ + self.rate(i, lambda_) * velocity, velocity

    def rate(self, i: int, lambda_: Tensor) -> Tensor | float:
        """rho_i, a number for each coordinate of lambda or one for all."""
        return self.log_rates[i].exp().to(lambda_) if self.learned else self.svi.lr

    @property
    def ascent(self) -> Ascent:
        """Momentum and clipping, for steps that are one function."""
        return Ascent(self.svi.momentum, self.svi.max_grad_norm, TINY)

    def clipped(self, gradient: Tensor, q: Any) -> Tensor:
        """The gradient with each block (mean, log-variance) scaled to at most ``max_grad_norm``, by example."""
        if self.svi.clip != "example":
            raise ValueError(f"trained rates clip per 'example', got {self.svi.clip!r}; use svi.clip example")
        if self.svi.max_grad_norm == math.inf:
            return gradient

        def clip(blocks: Tensor) -> Tensor:
            norm = torch.linalg.vector_norm(blocks, dim=-1, keepdim=True) + TINY
            return blocks * (self.svi.max_grad_norm / norm).clamp(max=1.0)

        return each_block(gradient, q, clip)


def group_parameters(model: nn.Module, objective: nn.Module, lr: float = 1e-3) -> list[dict[str, Any]]:
    """The parameters of both as groups for an optimiser: learned rates have a rate of their own, all else has ``lr``.

    Args:
        model: what is trained.
        objective: what it is trained by.
        lr: the optimiser's rate for weights and pi.

    Returns:
        One group, or two where the objective learns rates.

    Example:
        >>> import bsvi
        >>> model = bsvi.VAE(nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        >>> groups = group_parameters(model, bsvi.objective("bsvi-e2e", k=3), lr=1e-3)
        >>> [group["lr"] for group in groups]
        [0.001, 0.05]
    """
    rates = [module for module in objective.modules() if isinstance(module, Rates) and module.learned]
    own = {id(module.log_rates) for module in rates}
    rest = [p for p in (*model.parameters(), *objective.parameters()) if id(p) not in own]
    return [{"params": rest, "lr": lr}, *({"params": [module.log_rates], "lr": module.optim_lr} for module in rates)]


class Network(LazyModuleMixin, nn.Module):
    """Iterative inference (Marino et al. 2018): a network proposes the next lambda, and a gate mixes it with the old one.

    lambda_{i+1} = s lambda_i + (1 - s) f(lambda_i, g_i / |g_i|) with s in (0, 1), one network for all steps. g_i is a constant:
    nothing is differentiated twice.

    Args:
        width: how many numbers lambda has per example; without it the first batch tells.
        hidden: units of its two layers.

    Example:
        >>> Network(width=4)(0, torch.zeros(5, 4), torch.ones(5, 4), torch.zeros(0), None)[0].shape
        torch.Size([5, 4])
    """

    cls_to_become = None

    def __init__(self, width: int | None = None, hidden: int = 128) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of torch, that lazy modules are new
            super().__init__()
        self.hidden, self.inside = hidden, nn.Sequential(nn.ELU(), nn.Linear(hidden, hidden), nn.ELU())
        self.read, self.write, self.shift = (nn.UninitializedParameter() for _ in range(3))
        if width is not None:
            self.make(width)
            # what is made waits for no batch, and has no handle that would tell it from a trained one
            for hook in ("_initialize_hook", "_load_hook"):
                getattr(self, hook).remove()
                delattr(self, hook)

    def change(self, width: int | None, learned: bool | None) -> "Network":
        if learned is not None:
            raise ValueError("iterative inference has a network in place of rates; leave learned_rates out")
        return Network(width, self.hidden)

    def make(self, width: int) -> None:
        """Make the weights for this width: small steps at first, as the gate keeps most of the old lambda."""
        with torch.random.fork_rng(devices=[]):  # the draws that follow are those of any other method
            for parameter, shape in ((self.read, (self.hidden, 2 * width)), (self.write, (2 * width, self.hidden))):
                parameter.materialize(shape)
                nn.init.uniform_(parameter, -(shape[1] ** -0.5), shape[1] ** -0.5)
        self.shift.materialize((2 * width,))
        with torch.no_grad():
            self.shift.copy_(torch.cat([torch.zeros(width), torch.full((width,), KEPT)]))

    def initialize_parameters(self, i: int, lambda_: Tensor, *_: Any) -> None:
        if self.has_uninitialized_params():
            self.make(lambda_.shape[-1])

    def begin(self, lambda_: Tensor) -> Tensor:
        return lambda_.new_zeros(0)

    def see(self, gradient: Tensor) -> Tensor:
        return gradient.detach()  # the stop of iterative inference: what the network sees is data

    def forward(self, i: int, lambda_: Tensor, gradient: Tensor, state: Tensor, q: Any) -> tuple[Tensor, Tensor]:
        unit = each_block(self.see(gradient), q, lambda b: b / (b.square().mean(-1, keepdim=True).sqrt() + TINY))
        seen = torch.cat([lambda_, unit], dim=-1).to(self.read.dtype)
        new, gate = (
            F.linear(self.inside(F.linear(seen, self.read)), self.write, self.shift).to(lambda_).chunk(2, dim=-1)
        )
        kept = torch.sigmoid(gate)
        return kept * lambda_ + (1 - kept) * new, state
