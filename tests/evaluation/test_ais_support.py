"""AIS where z cannot be any number: priors on a half-line, an interval or a simplex, against conjugate likelihoods.

Limits are 6 standard errors (below 2e-9 each); the noise is fixed by the seed.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import (
    Beta,
    Binomial,
    Categorical,
    Dirichlet,
    Gamma,
    HalfNormal,
    Independent,
    LogNormal,
    MixtureSameFamily,
    Multinomial,
    NegativeBinomial,
    Normal,
    Poisson,
    Uniform,
    Wishart,
)

from bsvi import VAE, ais
from tests.oracles import FLOAT, mean_and_error

SHORT = {"chains": 4, "temperatures": 12, "leapfrog": 3, "pilots": 2}
TRIALS = 10


def of(*values):
    return torch.tensor(values, dtype=FLOAT)


def model_of(prior, decoder):
    """The encoder is not asked: chains start at the prior. Its family only says what shape z has."""
    shape = (prior() if callable(prior) else prior).event_shape
    family = lambda lambda_: Independent(Normal(lambda_[:, :1].expand(-1, shape.numel()), of(1.0)), 1)  # noqa: E731
    return VAE(lambda x: x.new_zeros(len(x), 1), decoder, posterior=family, prior=prior)


def one(distribution):
    return Independent(distribution, 1)


def beta_binomial(x, a, b):
    choose = math.lgamma(TRIALS + 1) - math.lgamma(x + 1) - math.lgamma(TRIALS - x + 1)
    log_beta = lambda a, b: math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)  # noqa: E731
    return choose + log_beta(a + x, b + TRIALS - x) - log_beta(a, b)


def dirichlet_multinomial(x, a):
    n, total = int(sum(x)), sum(a)
    start = math.lgamma(n + 1) + math.lgamma(total) - math.lgamma(total + n)
    rows = zip(x, a, strict=True)
    return start + sum(math.lgamma(n_i + a_i) - math.lgamma(a_i) - math.lgamma(n_i + 1) for n_i, a_i in rows)


def count(x, z):
    return Poisson(z).log_prob(x).sum(-1)


def binomial(x, z):
    return Binomial(TRIALS, z).log_prob(x).sum(-1)


GAMMA = one(Gamma(of(2.0), of(0.5)))
CASES = {  # prior, ln p(x|z), x, ln p(x)
    "gamma": (GAMMA, count, (3.0,), NegativeBinomial(2.0, probs=of(1 / 1.5)).log_prob(of(3.0)).item()),
    "beta": (one(Beta(of(2.0), of(0.5))), binomial, (4.0,), beta_binomial(4, 2.0, 0.5)),
    "uniform": (one(Uniform(of(0.0), of(1.0))), binomial, (4.0,), -math.log(TRIALS + 1)),
    "function": (lambda: one(Uniform(of(0.0), of(1.0))), binomial, (4.0,), -math.log(TRIALS + 1)),
    "dirichlet": (
        Dirichlet(of(0.7, 1.5, 3.0)),
        lambda x, z: Multinomial(6, z).log_prob(x),
        (1.0, 3.0, 2.0),
        dirichlet_multinomial((1, 3, 2), (0.7, 1.5, 3.0)),
    ),
    "log-normal": (
        one(LogNormal(of(0.5), of(1.0))),
        lambda x, z: LogNormal(z.log(), 0.8).log_prob(x).sum(-1),
        (2.0,),
        LogNormal(of(0.5), math.sqrt(1.64)).log_prob(of(2.0)).item(),
    ),
    "mixture": (  # of two Gammas: the likelihood is the mixture of theirs
        MixtureSameFamily(Categorical(of(0.3, 0.7)), one(Gamma(of(2.0, 5.0)[:, None], of(0.5, 1.0)[:, None]))),
        count,
        (3.0,),
        math.log(
            0.3 * NegativeBinomial(2.0, probs=of(1 / 1.5)).log_prob(of(3.0)).exp().item()
            + 0.7 * NegativeBinomial(5.0, probs=of(0.5)).log_prob(of(3.0)).exp().item()
        ),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_weights_average_to_p_of_x_on_a_bounded_support(name):
    """E w = p(x) at any number of temperatures, which no chain without the right |dz/du| gives."""
    prior, decoder, x, log_p = CASES[name]
    x = of(*x).expand(8_000, -1)
    annealed = ais(model_of(prior, decoder), [x], chains=1, temperatures=8, leapfrog=3)
    ratio = (torch.from_numpy(annealed.log_likelihood.per_example) - log_p).exp()
    mean, error = mean_and_error(ratio)
    assert abs(mean - 1) <= 6 * error and error < 0.04, (mean, error)
    assert annealed.acceptance.mean > 0.4


def test_forward_and_reverse_bracket_a_gamma_poisson_model():
    model, x = model_of(GAMMA, count), torch.arange(6.0, dtype=FLOAT).repeat(50)[:, None]
    exact = NegativeBinomial(2.0, probs=of(1 / 1.5)).log_prob(x[:, 0]).numpy()
    posterior = lambda x, chains: Gamma(2.0 + x, of(1.5)).sample((chains,))  # noqa: E731
    options = {"chains": 4, "temperatures": 20, "leapfrog": 4}
    low, high = (ais(model, [x], reverse=way, **options).log_likelihood.per_example for way in (None, posterior))
    below, above = mean_and_error(torch.from_numpy(low - exact)), mean_and_error(torch.from_numpy(high - exact))
    assert below[0] <= 6 * below[1] and above[0] >= -6 * above[1]
    assert (high - low).mean() < 0.3


def test_a_decoder_that_ignores_z_is_known_exactly():
    x = torch.linspace(-1, 1, 5)[:, None]
    model = VAE(nn.Linear(1, 2), lambda x, z: Normal(0.0, 1.0).log_prob(x).sum(-1))
    annealed = ais(model, x, **SHORT)
    expected = Normal(0.0, 1.0).log_prob(x[:, 0])
    np.testing.assert_allclose(annealed.log_likelihood.per_example, expected, atol=1e-5)


def test_a_coordinate_that_underflows_is_refused_and_asks_no_decoder():
    """A half-normal scale: far steps take z to 0 or infinity, where torch's Normal would raise."""
    prior = one(HalfNormal(torch.full((2,), 30.0)))
    decoder = lambda x, z: Normal(0.0, z).log_prob(x).sum(-1)  # noqa: E731
    family = lambda lambda_: Independent(LogNormal(lambda_[:, :2], lambda_[:, 2:].exp()), 1)  # noqa: E731
    model = VAE(nn.Linear(2, 4), decoder, posterior=family, prior=prior)
    annealed = ais(model, torch.full((20, 2), 1e-20), **SHORT)
    assert np.isfinite(annealed.log_likelihood.per_example).all()


def test_chains_that_are_not_finite_are_counted_and_reported():
    decoder = lambda x, z: torch.where(z[:, 0] > 1.0, math.nan, -(x - z).square().sum(-1))  # noqa: E731
    annealed = ais(VAE(nn.Linear(2, 4), decoder), torch.zeros(30, 2), **SHORT)
    lost = int(annealed.columns["nonfinite"].sum())
    assert 0 < lost < 120
    assert any(line.startswith(f"AIS: {lost} chains of") and "not finite" in line for line in annealed.warnings)


@pytest.mark.filterwarnings("ignore:Singular sample")
@pytest.mark.parametrize("prior", [one(Poisson(torch.ones(2))), Wishart(torch.tensor(3.0), torch.eye(2))])
def test_a_prior_without_coordinates_is_one_line_up_front(prior):
    calls = []

    def decoder(x, z):
        calls.append(1)
        return -z.flatten(1).square().sum(-1)

    model = VAE(nn.Linear(2, 4), decoder, prior=prior)
    with pytest.raises(ValueError, match=r"chains move z by gradients.*; use evaluate") as error:
        ais(model, torch.zeros(3, 2), **SHORT)
    assert "\n" not in str(error.value) and len(calls) <= 2  # it was tried, and no more
