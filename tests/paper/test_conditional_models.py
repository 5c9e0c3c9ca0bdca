"""Priors, families and KLs that depend on x, against a conditional linear-Gaussian model whose ln p(x) is known."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Gamma, Independent, MultivariateNormal, Normal, kl_divergence

import bsvi
from bsvi.model import takes_x, uses_x
from tests.oracles import FLOAT

LATENT, VISIBLE, SIGMA = 2, 3, 0.7
W = torch.tensor([[1.0, -0.4], [0.3, 0.8], [-0.7, 0.5]], dtype=FLOAT)


def data(n=40):
    """y ~ N(W z, sigma^2) with z ~ N(m(c), s(c)^2): each example has a prior of its own."""
    torch.manual_seed(2)
    c = torch.randn(n, 1, dtype=FLOAT)
    z = means(c) + scales(c) * torch.randn(n, LATENT, dtype=FLOAT)
    return {"y": z @ W.T + SIGMA * torch.randn(n, VISIBLE, dtype=FLOAT), "c": c}


def means(c):
    return torch.cat([2.0 * c, -c], -1)


def scales(c):
    return (0.3 * c).exp().expand(-1, LATENT)


def prior(x):
    return Independent(Normal(means(x["c"]), scales(x["c"])), 1)


def log_lik(x, z):
    return Normal(z @ W.T, SIGMA).log_prob(x["y"]).sum(-1)


def log_p(x):
    covariance = W @ (scales(x["c"]).square()[:, :, None] * W.T) + SIGMA**2 * torch.eye(VISIBLE, dtype=FLOAT)
    return MultivariateNormal(means(x["c"]) @ W.T, covariance).log_prob(x["y"])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(VISIBLE + 1, 2 * LATENT, dtype=FLOAT)

    def forward(self, x):
        return self.net(torch.cat([x["y"], x["c"]], -1))


def around_the_prior(lambda_, x):
    """A family that needs x: lambda is relative to the prior's own mean and scale."""
    mean, log_var = lambda_.chunk(2, -1)
    return Independent(Normal(means(x["c"]) + scales(x["c"]) * mean, scales(x["c"]) * (0.5 * log_var).exp()), 1)


class Own:
    """The same model without a base class."""

    def __init__(self):
        self.encoder = Encoder().requires_grad_(False)

    def encode(self, x):
        return self.encoder(x)

    def posterior(self, lambda_, x):
        return around_the_prior(lambda_, x)

    def log_prior(self, z, x):
        return prior(x).log_prob(z)

    def log_lik(self, x, z):
        return log_lik(x, z)

    def kl(self, q, x):
        return kl_divergence(q, prior(x))

    prior = staticmethod(prior)


def model(kind):
    torch.manual_seed(0)
    if kind == "own":
        return Own()
    if kind == "gaussian":
        return bsvi.VAE(Encoder(), log_lik, prior=prior)
    return bsvi.VAE(Encoder(), log_lik, posterior=around_the_prior, prior=prior)


@pytest.mark.parametrize("kind", ["own", "gaussian", "family"])
def test_every_estimator_agrees_with_the_exact_likelihood(kind):
    """Each error is at most 6 standard errors of its own and a bias that the number of draws explains."""
    x, one = data(), model(kind)
    exact = log_p(x).numpy()
    gap = bsvi.amortization_gap(one, x, steps=150, k=200)
    annealed = bsvi.ais(one, x, chains=16, temperatures=60, leapfrog=5)
    for found, bias in ((gap.log_likelihood, 0.02), (annealed.log_likelihood, 0.1)):
        difference = found.per_example - exact
        assert abs(difference.mean()) < bias + 6 * difference.std() / math.sqrt(len(exact))
    assert (gap.columns["elbo"] < exact + 0.3).all() and gap.amortization_gap.mean > 0.1


def test_a_wrong_prior_for_each_example_is_refused_by_ais():
    def other(x):
        return Independent(Normal(means(x["c"]) + 0.1, scales(x["c"])), 1)

    with pytest.raises(ValueError, match=r"log_prior is not the density of the unit Gaussian|is not the density of"):
        bsvi.ais(model("own"), data(), prior=other)
    with pytest.raises(ValueError, match=r"or of each of the 40 examples, got batch shape \(40, 2\).*Independent"):
        bsvi.ais(model("own"), data(), prior=lambda x: Normal(means(x["c"]), scales(x["c"])))


def test_kl_is_that_of_each_examples_own_prior():
    x, one = data(), model("family")
    scores = bsvi.evaluate(one, x, k=3, iwae=(), svi=bsvi.SVI(lr=1e-9))
    with torch.no_grad():
        q = around_the_prior(one.encode(x), x)
    np.testing.assert_allclose(scores.kl.per_example, kl_divergence(q, prior(x)).numpy(), rtol=1e-5)
    trajectory, _ = bsvi.SVI(steps=2, lr=1e-9, samples=2, closed_form_kl=True)(one, x)
    assert torch.allclose(trajectory.kl, kl_divergence(q, prior(x)).expand(6, -1), rtol=1e-5)


@pytest.mark.parametrize("method", bsvi.METHODS)
def test_every_method_trains_a_conditional_prior_and_family(method):
    class Prior(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(1, 2 * LATENT, dtype=FLOAT)

        def forward(self, x):
            mean, log_sd = self.net(x["c"]).chunk(2, -1)
            return Independent(Normal(mean, log_sd.exp()), 1)

    torch.manual_seed(0)
    x, learned = data(), Prior()
    one = bsvi.VAE(Encoder(), log_lik, posterior=around_the_prior, prior=learned)
    bsvi.objective(method, k=3)(one, x).loss.backward()
    for part in (one.encoder.net, learned.net):
        assert part.weight.grad is not None and part.weight.grad.abs().sum() > 0
    settings = bsvi.Training(steps=2, log_every=1, valid_every=1)
    bsvi.train(one, bsvi.objective(method, k=3, width=2 * LATENT), [x], [x], settings)


def test_ais_from_a_gamma_prior_for_each_example():
    """Poisson counts with a Gamma(a(c), b) rate: p(x) is negative binomial."""
    torch.manual_seed(1)
    c = torch.rand(12, 1, dtype=FLOAT) * 3 + 1
    x = {"n": torch.poisson(c), "c": c}
    one = bsvi.VAE(
        lambda x: torch.zeros(len(x["n"]), 2, dtype=FLOAT),
        lambda x, z: torch.distributions.Poisson(z).log_prob(x["n"]).sum(-1),
        posterior=lambda v: Independent(torch.distributions.LogNormal(v[:, :1], v[:, 1:].exp()), 1),
        prior=lambda x: Independent(Gamma(x["c"], torch.full_like(x["c"], 2.0)), 1),
    )
    exact = torch.distributions.NegativeBinomial(c, torch.full_like(c, 1 / 3)).log_prob(x["n"])[:, 0].numpy()
    difference = bsvi.ais(one, x, chains=64, temperatures=60).log_likelihood.per_example - exact
    assert abs(difference.mean()) < 0.02 + 6 * difference.std() / math.sqrt(len(exact))


def test_only_a_function_that_asks_for_x_gets_it():
    class Callable:
        def __call__(self, z, covariates):
            return z

    assert takes_x(Callable()) and takes_x(around_the_prior) and takes_x(Own().posterior) and takes_x(prior, 0)
    assert not takes_x(bsvi.DiagonalGaussian) and not takes_x(lambda z, scale=W: z) and not takes_x(None)
    assert not takes_x(nn.Linear(2, 2)) and takes_x(nn.Bilinear(2, 2, 2)) and not takes_x(lambda: W, 0)
    assert [uses_x(model(kind)) for kind in ("own", "gaussian", "family")] == [True] * 3
    assert not uses_x(bsvi.VAE(nn.Linear(3, 4), log_lik))
