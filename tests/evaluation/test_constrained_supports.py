"""ln p(x) where z is positive, in (0, 1) or on a simplex: chains in unbounded coordinates, against conjugate models.

Limits are 6 standard errors of the average over examples and a bias of 0.05 nats; the noise is fixed by the seed.
"""

import math

import pytest
import torch
from torch import distributions as D

import bsvi
from bsvi.evaluation.refine_anneal import refine_anneal
from tests.oracles import FLOAT

N = 20


def gamma_poisson():
    x = torch.poisson(torch.full((N, 1), 4.0, dtype=FLOAT))
    prior = D.Gamma(torch.tensor([2.0], dtype=FLOAT), torch.tensor([0.5], dtype=FLOAT))
    exact = D.NegativeBinomial(2.0, torch.tensor(1 / 1.5, dtype=FLOAT)).log_prob(x)[:, 0]
    return x, lambda x: D.Gamma(x + 1.0, 1.0), lambda x, z: D.Poisson(z).log_prob(x).sum(-1), prior, exact


def beta_binomial():
    x = D.Binomial(10, torch.linspace(0.1, 0.9, N, dtype=FLOAT)).sample()[:, None]
    a, b = torch.tensor([0.8], dtype=FLOAT), torch.tensor([2.0], dtype=FLOAT)

    def log_beta(a, b):
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    choose = torch.lgamma(torch.tensor(11.0)) - torch.lgamma(x + 1) - torch.lgamma(11 - x)
    exact = (choose + log_beta(x + a, 10 - x + b) - log_beta(a, b))[:, 0]
    return (
        x,
        lambda x: D.Beta(x + 1.0, 11.0 - x),
        lambda x, z: D.Binomial(10, z).log_prob(x).sum(-1),
        D.Beta(a, b),
        exact,
    )


def dirichlet_multinomial():
    a = torch.tensor([0.7, 1.5, 3.0], dtype=FLOAT)
    x = D.Multinomial(8, D.Dirichlet(a).sample((N,))[0]).sample((N,))
    exact = torch.lgamma(torch.tensor(9.0)) - torch.lgamma(x + 1).sum(-1)
    exact = exact + torch.lgamma(a.sum()) - torch.lgamma(a.sum() + 8) + (torch.lgamma(a + x) - torch.lgamma(a)).sum(-1)
    return (
        x,
        lambda x: D.Dirichlet(x + 1.0),
        lambda x, z: D.Multinomial(8, z, validate_args=False).log_prob(x),
        D.Dirichlet(a),
        exact,
    )


def lognormal():
    """y = ln z + noise with z log-normal: ln p(y) is a Gaussian's."""
    x = torch.linspace(-2, 2, N, dtype=FLOAT)[:, None]
    one = torch.ones(1, dtype=FLOAT)
    exact = D.Normal(0.0, math.sqrt(1.25)).log_prob(x)[:, 0]

    def log_lik(x, z):
        return D.Normal(z.log(), 0.5).log_prob(x).sum(-1)

    return x, lambda x: D.LogNormal(x, one), log_lik, D.LogNormal(0 * one, one), exact


@pytest.mark.parametrize("case", [gamma_poisson, beta_binomial, dirichlet_multinomial, lognormal])
def test_chains_find_the_exact_likelihood_of_a_conjugate_model(case):
    torch.manual_seed(3)
    x, q, log_lik, prior, exact = case()
    model = bsvi.wrap(q, log_lik, prior=prior)
    annealed = bsvi.ais(model, x, chains=16, temperatures=30, leapfrog=4)
    refined = refine_anneal(model, x, passes=400)
    for found in (annealed, refined):
        difference = torch.tensor(found.log_likelihood.per_example) - exact
        assert abs(difference.mean()) < 0.05 + 6 * difference.std() / math.sqrt(N), (case.__name__, difference.mean())


def test_a_simplex_beside_another_site_is_refused_by_name():
    torch.manual_seed(3)
    x, q, log_lik, prior, _ = dirichlet_multinomial()
    model = bsvi.wrap(
        lambda x: {"share": q(x), "level": D.Normal(x[:, 0], 1.0)},
        lambda x, z: log_lik(x, z["share"]) - z["level"].square(),
        prior={"share": prior, "level": D.Normal(0.0, 1.0)},
    )
    assert math.isfinite(bsvi.evaluate(model, x, k=2).log_likelihood.mean)
    with pytest.raises(ValueError, match=r"share has the support Simplex.*beside other sites; use evaluate") as error:
        bsvi.ais(model, x)
    assert "\n" not in str(error.value)
