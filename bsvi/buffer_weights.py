"""The buffer weight pi (section 4.1): a module that returns ln pi (float64) for the k + 1 weights of the buffer.

pi never sees the weights: a pi chosen from the weights that it averages would break Theorem 1.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Uniform(nn.Module):
    """pi_i = 1 / (k + 1), the paper's base version.

    >>> Uniform()(4).exp().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def forward(self, draws: int) -> Float[Tensor, " draws"]:
        return torch.full((draws,), -math.log(draws), dtype=torch.float64)


class Last(nn.Module):
    """pi = (0, ..., 0, 1), which turns the BSVI bound into the SVI bound (section 4.1).

    >>> Last()(3).exp().tolist()
    [0.0, 0.0, 1.0]
    """

    def forward(self, draws: int) -> Float[Tensor, " draws"]:
        log_pi = torch.full((draws,), -math.inf, dtype=torch.float64)
        log_pi[-1] = 0.0
        return log_pi


class Learned(nn.Module):
    """One global pi for all examples, a softmax over k + 1 logits that start at zero; trained with theta's optimiser.

    ``E ln sum_i pi_i w_i`` is concave in pi, and its maximum is at least the SVI bound (section 4.1).

    >>> Learned(4)(4).exp().tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def __init__(self, draws: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(draws))

    def forward(self, draws: int) -> Float[Tensor, " draws"]:
        if draws != len(self.logits):
            raise ValueError(
                f"Learned was made for {len(self.logits)} weights, got {draws}; "
                f"make it with Learned({draws}): k + 1 for k steps"
            )
        return torch.log_softmax(self.logits.double(), dim=0)


def buffer_weight_average(log_pi: Float[Tensor, " draws"]) -> float:
    """E_pi[i] / k, where in the buffer pi looks: 0 is the encoder's proposal, 1 is the last one (Fig. 6c).

    Args:
        log_pi: ln pi_i of each draw

    Returns:
        A number between 0 and 1.

    Example:
        >>> buffer_weight_average(Uniform()(10))
        0.5
    """
    index = torch.linspace(0.0, 1.0, len(log_pi), dtype=torch.float64, device=log_pi.device)
    return round(float((log_pi.detach().double().exp() * index).sum()), 12)
