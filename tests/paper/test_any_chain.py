"""Theorem 1 as a public tool: giwae on draws of a chain that is not SVI.

A Langevin-like chain z_{i+1} = z_i + eta grad ln p(x, z_i) + s eps has Gaussian conditionals, so its weights are exact.
The noise is wider than the posterior, so the weights are bounded and 0.02 is more than 7 standard errors at N = 200,000
(checked): false alarm below 1e-11.
"""

import torch

from bsvi import Uniform, giwae
from tests.oracles import FLOAT, PPCA, mean_and_error

N, ETA, S = 200_000, 0.15, 1.1


def langevin_log_weights(model, draws, density_of_the_move=True):
    W, b, sigma = model.W.detach(), model.b.detach(), model.sigma
    z, rows = torch.zeros(N, 2, dtype=FLOAT), []
    for _ in range(draws):
        drift = z + ETA * ((model.x - z @ W.T - b) @ W / sigma**2 - z)
        z = drift + S * torch.randn(N, 2, dtype=FLOAT)
        log_q = torch.distributions.Normal(drift if density_of_the_move else 0.0, S).log_prob(z).sum(-1)
        with torch.no_grad():
            rows.append(model.log_lik(model.batch(N), z) + model.log_prior(z) - log_q)
    return torch.stack(rows)


def test_a_langevin_chain_gives_a_valid_bound():
    model = PPCA()
    exact = model.exact_log_p(model.x)
    bound = giwae(langevin_log_weights(model, draws=6), Uniform()(6)) - exact
    R = bound.exp()
    assert R.std() < 1.2
    assert abs(R.mean().item() - 1) <= 0.02
    mean, error = mean_and_error(bound)
    assert mean <= 5.2 * error


def test_the_conditional_density_is_what_makes_it_valid():
    model = PPCA()
    log_w = langevin_log_weights(model, draws=6, density_of_the_move=False)
    R = (giwae(log_w, Uniform()(6)) - model.exact_log_p(model.x)).exp()
    assert abs(R.mean().item() - 1) > 0.1
