"""AIS against exact likelihoods: bracketed from both sides, unbiased, and independent of batches and chunks.

Limits are 6 standard errors, one- or two-sided (below 2e-9 each); the noise is fixed by the seed.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from bsvi import VAE
from bsvi.evaluation.ais import ais, make_schedule
from tests.evaluation.oracle import Diagonal, batches, data
from tests.oracles import PPCA, mean_and_error

SHORT = {"chains": 4, "temperatures": 12, "leapfrog": 3, "pilots": 2}


def exact_samples(model):
    return lambda x, chains: model.exact_posterior(x).sample((chains,))


def errors(model, x, **options):
    """log_likelihood minus ln p(x), per example; all examples as one batch."""
    return torch.from_numpy(ais(model, [x], **options).log_likelihood.per_example) - model.exact_log_p(x)


def test_forward_and_reverse_bracket_the_exact_value():
    model = PPCA(latent=4, visible=6)
    x = data(model, 300)
    options = {"chains": 4, "temperatures": 40, "leapfrog": 5}
    low, low_error = mean_and_error(errors(model, x, **options))
    high, high_error = mean_and_error(errors(model, x, reverse=exact_samples(model), **options))
    assert low <= 6 * low_error and high >= -6 * high_error
    assert low < -3 * low_error and high > 3 * high_error  # few temperatures: the sandwich is visibly open
    assert high - low < 1.0


def test_more_temperatures_close_the_sandwich():
    model = PPCA(latent=4, visible=6)
    x = data(model, 60)
    gaps = []
    for temperatures in (10, 100):
        options = {"chains": 4, "temperatures": temperatures, "leapfrog": 5}
        both = [errors(model, x, reverse=way, **options) for way in (None, exact_samples(model))]
        gaps.append((both[1] - both[0]).mean().item())
    assert gaps[1] < 0.35 * gaps[0]
    assert gaps[1] < 0.5


@pytest.mark.parametrize("latent", [1, 2])
def test_weights_average_to_p_of_x(latent):
    """E w = p(x) at any number of temperatures: the average of w / p(x) over 30,000 chains is 1.

    With one coordinate this fails if momentum and acceptance share bits.
    """
    model = Diagonal(latent=latent)
    x = (model.b.detach() + 0.3).expand(30_000, 3)
    options = {"chains": 1, "temperatures": 8 if latent == 1 else 30, "leapfrog": 3}
    ways = [(1, None), (-1, exact_samples(model))][: 3 - latent]  # in two dimensions 1 / w has too heavy a tail to test
    for sign, way in ways:
        mean, error = mean_and_error((sign * errors(model, x, reverse=way, **options)).exp())
        assert abs(mean - 1) <= 6 * error and error < 0.01, (mean, error)


def test_step_sizes_come_to_the_acceptance_aimed_at():
    model = PPCA(latent=4, visible=6)
    annealed = ais(model, data(model, 30), chains=4, temperatures=150, leapfrog=5)
    assert 0.55 < annealed.acceptance.mean < 0.75
    assert annealed.warnings == ()
    assert (annealed.columns["ess"] <= 4 + 1e-9).all()


def test_batches_order_and_chunks_change_no_number():
    model = PPCA(latent=3, visible=5)
    x = data(model, 20)
    whole = ais(model, batches(x, 20), **SHORT)
    for way in (None, exact_samples(model)):
        whole = ais(model, batches(x, 20), reverse=way, **SHORT)
        parts = ais(model, batches(x, 6, backwards=True), chunk=3, reverse=way, **SHORT)
        assert whole.bound == ("lower" if way is None else "upper")
        for name in whole.columns:
            np.testing.assert_allclose(parts.columns[name], whole.columns[name], atol=1e-8, err_msg=name)
        assert whole.warnings == parts.warnings


def test_a_prior_of_the_vaes_own_is_used_and_a_wrong_one_refused():
    """x ~ N(z, 1) with z ~ N(2, 0.5^2): ln p(x) is that of N(2, 1.25)."""
    prior = Independent(Normal(torch.full((1,), 2.0), torch.full((1,), 0.5)), 1)
    decoder = lambda x, z: Normal(z, 1.0).log_prob(x).sum(-1)  # noqa: E731
    model = VAE(nn.Linear(1, 2), decoder, prior=prior)
    x = torch.linspace(0, 4, 50)[:, None]
    exact = Normal(2.0, math.sqrt(1.25)).log_prob(x[:, 0]).double()
    for way in (model, VAE(nn.Linear(1, 2), decoder, prior=lambda: prior)):
        error = torch.from_numpy(ais(way, x, chains=8, temperatures=40).log_likelihood.per_example) - exact
        mean, spread = mean_and_error(error)
        assert abs(mean) < 6 * spread + 0.01 and spread < 0.01

    class Own:
        encode, posterior, log_lik = model.encode, model.posterior, model.log_lik
        log_prior = staticmethod(prior.log_prob)

    with pytest.raises(ValueError, match="give prior="):
        ais(Own(), x, **SHORT)
    assert ais(Own(), x, prior=prior, **SHORT).bound == "lower"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chains": 0}, "chains must be"),
        ({"temperatures": 1}, "temperatures must be at least 2"),
        ({"leapfrog": 0}, "leapfrog must be"),
        ({"pilots": 0}, "pilots must be"),
        ({"reverse": lambda x, chains: torch.zeros(chains, 1)}, "reverse must return"),
    ],
)
def test_mistakes_are_one_clear_line(change, message):
    model = Diagonal()
    with pytest.raises(ValueError, match=message) as error:
        ais(model, data(model, 3), **SHORT | change)
    assert "\n" not in str(error.value)


def test_the_schedule_rises_from_0_to_1_and_is_symmetric():
    betas = np.array(make_schedule(50))
    assert betas[0] == 0 and betas[-1] == 1 and len(betas) == 51
    assert (np.diff(betas) > 0).all()
    np.testing.assert_allclose(betas + betas[::-1], 1, atol=1e-12)


def test_a_store_serves_ais_too(tmp_path):
    model = Diagonal()
    x = data(model, 6)
    first = ais(model, batches(x, 3), store=tmp_path / "store", **SHORT)
    model.calls = 0
    again = ais(model, batches(x, 3), store=tmp_path / "store", **SHORT)
    assert model.calls == 0
    np.testing.assert_array_equal(first.columns["log_likelihood"], again.columns["log_likelihood"])
