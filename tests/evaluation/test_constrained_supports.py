"""ln p(x) where z is positive, in (0, 1) or on a simplex: chains in unbounded coordinates, against conjugate models.

Limits are 6 standard errors of the average over examples and a bias of 0.05 nats; the noise is fixed by the seed.
"""

import math

import pytest
import torch
from torch import distributions as D

import bsvi
from bsvi.evaluation.hmc import Coordinates
from bsvi.evaluation.refine_anneal import refine_anneal
from bsvi.evaluation.side_by_side import SideBySide
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


def sites_side_by_side():
    """Two multinomials with shares of their own, a count and a level: what is exact of each is exact of all."""
    x, _, log_lik, prior, exact = dirichlet_multinomial()
    rate, _, _, _, exact_rate = gamma_poisson()
    level = torch.linspace(-2, 2, N, dtype=FLOAT)[:, None]
    one = torch.ones(1, dtype=FLOAT)

    def posterior(x):
        return {
            "share": D.Dirichlet((x["counts"] + 1.0)[:, None].expand(-1, 2, -1)),
            "level": D.Normal(x["level"], 0.8 * one),
            "rate": D.Gamma(x["rate"][:, 0] + 1.0, one[0]),
        }

    def all_log_lik(x, z):
        total = sum(log_lik(x["counts"], z["share"][:, i]) for i in range(2))
        total = total + D.Normal(z["level"], 0.5 * one).log_prob(x["level"]).sum(-1)
        return total + D.Poisson(z["rate"]).log_prob(x["rate"][:, 0])

    priors = {"share": prior, "level": D.Normal(0 * one, one), "rate": D.Gamma(2 * one[0], 0.5 * one[0])}
    exact = 2 * exact + exact_rate + D.Normal(0.0, math.sqrt(1.25)).log_prob(level)[:, 0]
    return {"counts": x, "level": level, "rate": rate}, posterior, all_log_lik, priors, exact


@pytest.mark.parametrize("prior_is_known", [True, False])
def test_simplices_beside_other_sites_have_coordinates_of_their_own(prior_is_known):
    torch.manual_seed(3)
    x, q, log_lik, priors, exact = sites_side_by_side()

    def log_prior(z):
        return sum(priors[name].log_prob(value).reshape(len(value), -1).sum(-1) for name, value in z.items())

    model = bsvi.wrap(q, log_lik, **({"prior": priors} if prior_is_known else {"log_prior": log_prior}))
    found = [refine_anneal(model, x, passes=600)]
    if prior_is_known:
        prior = model.prior(x)
        assert prior.event_shape == (8,)
        assert Coordinates.of(prior, torch.device("cpu")).u(prior.sample((N,))).shape == (N, 6)
        found += [bsvi.ais(model, x, chains=16, temperatures=60, leapfrog=4)]
    for result in found:
        difference = torch.tensor(result.log_likelihood.per_example) - exact
        assert abs(difference.mean()) < 0.05 + 6 * difference.std() / math.sqrt(N), difference.mean()


def test_the_jacobian_of_sites_side_by_side_is_the_determinant():
    support = SideBySide([D.constraints.simplex, D.constraints.positive, D.constraints.real], [(2, 3), (), (2,)])
    coordinates = D.biject_to(support)
    u = torch.randn(7, dtype=FLOAT)
    z = coordinates(u)
    assert z.shape == (9,) and coordinates.inverse_shape((9,)) == (7,) and coordinates.forward_shape((7,)) == (9,)
    torch.testing.assert_close(coordinates.inv(z), u)
    free = [0, 1, 3, 4, 6, 7, 8]  # a share of three follows from two
    jacobian = torch.autograd.functional.jacobian(coordinates, u)[free]
    torch.testing.assert_close(coordinates.log_abs_det_jacobian(u, z), torch.linalg.slogdet(jacobian)[1])
    assert support.check(z) and not support.check(torch.where(torch.arange(9) == 6, -z, z))
