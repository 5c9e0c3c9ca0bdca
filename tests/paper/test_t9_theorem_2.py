"""T9: Theorem 2 and its Corollary by quadrature in one dimension, for independent, different proposals (double sampling).

KL(q_SIR || p) <= -(bound at pi*) + ln p(x) <= KL(q_k || p). Deterministic: no sampling, errors of the grid below 1e-5.
"""

import pytest
import torch

from bsvi import giwae, responsibilities
from tests.oracles import FLOAT

GRID = torch.linspace(-12, 12, 1201, dtype=FLOAT)
H = (GRID[1] - GRID[0]).item()


def log_posterior(kind):
    """A Gaussian posterior, or one with two modes; ln p(x) = 0 without loss of generality."""
    normal = torch.distributions.Normal
    if kind == "gaussian":
        return normal(0.0, 1.0).log_prob(GRID)
    modes = torch.stack([normal(-1.5, 0.7).log_prob(GRID), normal(1.5, 0.6).log_prob(GRID)])
    return torch.logsumexp(modes + torch.tensor([[0.6], [0.4]], dtype=FLOAT).log(), dim=0)


def kl(log_a, log_b):
    return (log_a.exp() * (log_a - log_b)).sum().item() * H


def bound_and_q_sir(log_p, log_q0, log_q1, pi):
    """E ln(pi_0 w_0 + pi_1 w_1) and the density of q_SIR, by sums over all pairs (z_0, z_1) of the grid."""
    log_pi = torch.tensor([1 - pi, pi], dtype=FLOAT).log()
    n = len(GRID)
    log_w = torch.stack([(log_p - log_q0)[:, None].expand(n, n), (log_p - log_q1)[None, :].expand(n, n)]).flatten(1)
    joint = (log_q0[:, None] + log_q1[None, :]).exp() * H**2  # probability of the pair
    bound = (joint * giwae(log_w, log_pi).view(n, n)).sum().item()
    r = responsibilities(log_w, log_pi).view(2, n, n)
    q_sir = ((joint * r[0]).sum(1) + (joint * r[1]).sum(0)) / H
    return bound, q_sir


@pytest.mark.parametrize("kind", ["gaussian", "two modes"])
@pytest.mark.parametrize("last", [(0.3, 1.2), (0.8, 0.9), (-0.4, 1.4)])
def test_resampling_comes_closer_to_the_posterior_than_the_last_proposal(kind, last):
    log_p = log_posterior(kind)
    log_q0 = torch.distributions.Normal(1.2, 1.5).log_prob(GRID)
    log_q1 = torch.distributions.Normal(*last).log_prob(GRID)
    pis = torch.linspace(0.0, 1.0, 21)[1:-1].tolist()
    bounds = [bound_and_q_sir(log_p, log_q0, log_q1, pi)[0] for pi in pis]
    bends = [b2 - 2 * b1 + b0 for b0, b1, b2 in zip(bounds, bounds[1:], bounds[2:], strict=False)]
    assert max(bends) < 0  # concave in pi
    best = pis[bounds.index(max(bounds))]
    for pi in (0.5, best):
        bound, q_sir = bound_and_q_sir(log_p, log_q0, log_q1, pi)
        assert abs(q_sir.sum().item() * H - 1) < 1e-6
        kl_sir = kl(q_sir.clamp_min(1e-300).log(), log_p)
        assert 0 < kl_sir < -bound  # Theorem 2, for any pi
    assert -max(bounds) < kl(log_q1, log_p)  # Corollary 1, at pi*
    assert max(bounds) < 0
