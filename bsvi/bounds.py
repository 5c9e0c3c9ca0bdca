"""Theorem 1: one bound for every method, a pure function of log-weights."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Bound = Callable[[Tensor, Tensor], Tensor]  # of log_w (draws, batch) and log_pi (draws,)


def giwae(log_w: Float[Tensor, "draws batch"], log_pi: Float[Tensor, " draws"]) -> Float[Tensor, " batch"]:
    """ln sum_i pi_i w_i, the generalised IWAE bound (Theorem 1).

    Its expectation is at most ln p(x) for draws of *any* chain, whether SVI made it or not, as long as

    - ``w_i = p(x, z_i) / q(z_i | the draws that z_i was conditioned on)``, the exact conditional density, and
    - ``pi`` is fixed before the draws: it may be learned, but never from the weights that it averages.

    With ``pi = (0, ..., 0, 1)`` it is the SVI bound, with independent draws of one q IWAE, with one draw the ELBO.
    A weight of zero (``log_w = -inf``) keeps its share pi_i, so the bound stays valid.

    Args:
        log_w: ln w_i of each draw and example
        log_pi: ln pi_i of each draw

    Returns:
        The bound of each example, in nats.

    Example:
        >>> log_w = torch.tensor([[0.0], [2.0]])
        >>> giwae(log_w, torch.tensor([0.5, 0.5]).log()).item()  # ln((1 + e^2) / 2)
        1.433780...
    """
    return torch.logsumexp(log_pi[:, None] + log_w, dim=0)


def extend(
    total: Float[Tensor, " batch"], log_w: Float[Tensor, "draws batch"], log_pi: Float[Tensor, " draws"]
) -> Float[Tensor, " batch"]:
    """``total`` with further draws added: giwae of a long chain, one piece at a time and without keeping it.

    >>> log_w, log_pi = torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([0.2, 0.3, 0.5]).log()
    >>> total = torch.full((1,), -torch.inf)
    >>> for i in range(3):
    ...     total = extend(total, log_w[i : i + 1], log_pi[i : i + 1])
    >>> torch.allclose(total, giwae(log_w, log_pi))
    True
    """
    return torch.logaddexp(total, giwae(log_w, log_pi))


def responsibilities(
    log_w: Float[Tensor, "draws batch"], log_pi: Float[Tensor, " draws"]
) -> Float[Tensor, "draws batch"]:
    """r_i = pi_i w_i / sum_j pi_j w_j, the resampling probabilities of q_SIR (Lemma 1).

    They are also the derivative of ``giwae`` with respect to ``ln w_i``, which is how the Lemma comes about.
    Where all weights of an example are zero there is nothing to prefer, and r is pi.

    Args:
        log_w: ln w_i of each draw and example
        log_pi: ln pi_i of each draw

    Returns:
        r_i of each draw and example; over the draws they sum to 1.

    Example:
        >>> responsibilities(torch.tensor([[0.0], [2.0]]), torch.tensor([0.5, 0.5]).log()).flatten()
        tensor([0.1192, 0.8808])
    """
    r = torch.softmax(log_pi[:, None] + log_w, dim=0)
    return torch.where(torch.isnan(r), log_pi.exp()[:, None], r)


def derivative(
    bound: Bound, log_w: Float[Tensor, "draws batch"], log_pi: Float[Tensor, " draws"]
) -> Float[Tensor, "draws batch"]:
    """r_i = d bound / d ln w_i, so that resampling works for every bound; for giwae the responsibilities.

    A weight of zero teaches nothing: its r is 0, and where all weights of an example are zero, so is every r.

    >>> derivative(giwae, torch.tensor([[0.0], [2.0]]), torch.tensor([0.5, 0.5]).log()).flatten()
    tensor([0.1192, 0.8808])
    """
    log_w = log_w.detach().requires_grad_()
    (r,) = torch.autograd.grad(bound(log_w, log_pi.detach()).sum(), log_w)
    return torch.where(torch.isfinite(r) & torch.isfinite(log_w.detach()), r, 0.0)
