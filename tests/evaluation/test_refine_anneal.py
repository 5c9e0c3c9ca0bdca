"""Refine, then anneal, against exact likelihoods: unbiased from any base, bracketed, and blind to batches and chunks.

Limits are 6 standard errors, one- or two-sided (below 2e-9 each); the noise is fixed by the seed.
"""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import AffineTransform, Bernoulli, Gamma, Independent, Normal, TransformedDistribution

from bsvi import VAE
from bsvi.evaluation import base_density, hmc
from bsvi.evaluation import refine_anneal as module
from bsvi.evaluation.budget import Budget, plan_budget
from bsvi.evaluation.refine_anneal import refine_anneal
from bsvi.runs.store import share_path
from tests.evaluation.oracle import batches, data
from tests.oracles import PPCA, BernoulliDecoder, Counted, mean_and_error

SHORT = Budget(climb=6, samples=2, rounds=2, draws=2, chains=3, temperatures=5, leapfrog=2)
# a base that is not the posterior
POOR = Budget(climb=1, samples=1, rounds=0, draws=1, chains=1, temperatures=8, leapfrog=2)


def exact_samples(model):
    return lambda x, chains: model.exact_posterior(x).sample((chains,))


def errors(model, x, **options):
    """log_likelihood minus ln p(x), per example; all examples as one batch."""
    return torch.from_numpy(refine_anneal(model, [x], **options).log_likelihood.per_example) - model.exact_log_p(x)


def ratio(budget, n=10_000, seed=0, **start):
    """The mean of w / p(x) over n chains, as the number of its standard errors from 1, and this error.

    The posterior is correlated, and the base wider than it in every direction: weights are bounded.
    """
    model = PPCA().start_wide()
    if start:
        model.start(model.exact_posterior(model.x).mean + start["shift"], torch.tensor(start["log_var"]).double())
    mean, error = mean_and_error(errors(model, model.batch(n), budget=budget, seed=seed).exp())
    return (mean - 1) / error, error


@pytest.mark.parametrize("temperatures", [1, 2, 8])
def test_weights_average_to_p_of_x(temperatures):
    score, error = ratio(Budget(**{**vars(POOR), "temperatures": temperatures}))
    assert abs(score) < 6 and 1e-4 < error < 0.02, (score, error)


def test_weights_average_to_p_of_x_with_200_temperatures():
    score, error = ratio(Budget(**{**vars(POOR), "temperatures": 200, "leapfrog": 1}), n=200)
    assert abs(score) < 6 and error < 0.02, (score, error)


def test_weights_average_to_p_of_x_from_a_q_that_is_far_off():
    score, error = ratio(POOR, shift=1.5, log_var=1.5)
    assert abs(score) < 6 and error < 0.03, (score, error)


def test_weights_average_to_p_of_x_with_learned_correlations():
    """Few points of a wide climb, so that what is learned is not the posterior itself."""
    score, error = ratio(Budget(climb=4, samples=1, rounds=2, draws=4, chains=1, temperatures=4, leapfrog=2))
    assert abs(score) < 6 and error < 0.02, (score, error)


def adapt_on_weighed_chains(patch):
    own = module.anneal
    patch.setattr(module, "anneal", lambda *a, **k: own(*a[:6], steps=None, first_step=3.0, rate=2.0))


def leave_out_the_normaliser(patch):
    patch.setattr(base_density, "log_normal", lambda v: -0.5 * v.double().square().sum(-1))


def leave_out_the_jacobian(patch):
    patch.setattr(base_density.Gaussian, "log_det", lambda self: torch.zeros(len(self.mean), dtype=torch.float64))


def accept_every_move(patch):
    from bsvi.evaluation import ais

    own = ais.move_chains

    def move(path, at, momentum, step, beta, leapfrog):
        new, log_ratio = own(path, at, momentum, step, beta, leapfrog)
        return new, torch.full_like(log_ratio, math.inf)

    patch.setattr(ais, "move_chains", move)


def choose_by_weighed_draws(patch):
    patch.setattr(module, "ROUND", module.START)


MUTANTS = (
    adapt_on_weighed_chains,
    leave_out_the_normaliser,
    leave_out_the_jacobian,
    accept_every_move,
    choose_by_weighed_draws,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda f: f.__name__)
def test_what_is_wrong_would_be_seen(mutant, monkeypatch):
    mutant(monkeypatch)
    bases_differ, many = {"climb": 12, "rounds": 2, "temperatures": 4}, {"temperatures": 16, "leapfrog": 1}
    change = bases_differ if mutant is choose_by_weighed_draws else many
    score, error = ratio(Budget(**{**vars(POOR), **change}), n=20_000)
    assert not abs(score) < 8, (score, error)


def test_forward_and_reverse_bracket_the_exact_value():
    model = PPCA(latent=4, visible=6)
    x = data(model, 300)
    budget = Budget(climb=2, samples=2, rounds=0, draws=2, chains=2, temperatures=6, leapfrog=2)
    low, low_error = mean_and_error(errors(model, x, budget=budget))
    high, high_error = mean_and_error(errors(model, x, budget=budget, reverse=exact_samples(model)))
    assert low < -6 * low_error and high > 6 * high_error  # a poor base and few temperatures: visibly open


@pytest.mark.parametrize(("shift", "log_var"), [(0.0, 0.0), (20.0, 3.0), (-5.0, -4.0)])
def test_a_thousand_passes_find_a_correlated_posterior_from_a_wrong_q(shift, log_var):
    model = PPCA(latent=6, visible=9)
    x = data(model, 20)
    model.start(torch.full((6,), shift, dtype=torch.float64), torch.tensor(log_var).double())
    annealed = refine_anneal(model, [x])
    assert np.abs(annealed.log_likelihood.per_example - model.exact_log_p(x).numpy()).max() < 0.5
    assert annealed.columns["correlated"].mean() > 0.8 and annealed.warnings == ()


def test_batches_order_and_chunks_change_no_number():
    model = PPCA(latent=3, visible=5)
    x = data(model, 20)
    for way in (None, exact_samples(model)):
        whole = refine_anneal(model, batches(x, 20), budget=SHORT, reverse=way)
        parts = refine_anneal(model, batches(x, 6, backwards=True), budget=SHORT, reverse=way, chunk=2)
        assert whole.bound == ("lower" if way is None else "upper") and whole.warnings == parts.warnings
        for name in whole.columns:
            np.testing.assert_allclose(parts.columns[name], whole.columns[name], atol=1e-7, err_msg=name)


def test_shares_and_a_store_give_the_numbers_of_one_process(tmp_path):
    model = PPCA(latent=3, visible=5)
    x, path = data(model, 12), tmp_path / "store.jsonl"
    whole = refine_anneal(model, batches(x, 3), budget=SHORT)
    for number in (1, 2):
        refine_anneal(
            model, islice(batches(x, 3), number - 1, None, 2), budget=SHORT, store=share_path(path, number, 2)
        )
    model.calls = 0
    again = refine_anneal(model, batches(x, 3), budget=SHORT, store=path)
    assert model.calls == 0  # nothing is computed twice
    for name in whole.columns:
        np.testing.assert_array_equal(again.columns[name], whole.columns[name])
    with pytest.raises(ValueError, match="holds another evaluation"):
        refine_anneal(model, batches(x, 3), passes=300, store=path)


class ExponentialGamma:
    """z ~ Gamma(2, 1), x ~ Exponential(z): p(x) = 2 / (1 + x)^3; the encoder's Gamma is wrong."""

    def encode(self, x):
        return torch.tensor([[1.0, 0.0]]).double().expand(len(x), 2)

    def posterior(self, lambda_):
        return Independent(Gamma(lambda_[:, :1].exp(), lambda_[:, 1:].exp()), 1)

    def log_prior(self, z):
        return Gamma(2.0, 1.0).log_prob(z).sum(-1)

    def log_lik(self, x, z):
        return (z.log() - z * x).sum(-1)


@pytest.mark.parametrize("jacobian", [True, False])
def test_a_bounded_latent_is_moved_in_unbounded_coordinates_with_their_jacobian(jacobian, monkeypatch):
    if not jacobian:
        monkeypatch.setattr(hmc.Coordinates, "log_volume", lambda self, u, z: 0.0)
    x = torch.full((4000, 1), 1.5).double()
    budget = Budget(climb=3, samples=2, rounds=0, draws=2, chains=1, temperatures=4, leapfrog=2)
    log_w = torch.from_numpy(refine_anneal(ExponentialGamma(), [x], budget=budget).log_likelihood.per_example)
    mean, error = mean_and_error((log_w - math.log(2 / 2.5**3)).exp())
    assert abs(mean - 1) < 6 * error and error < 0.02 if jacobian else abs(mean - 1) > 8 * error, (mean, error)


def test_a_family_that_knows_no_mean_is_met_by_draws():
    family = lambda lambda_: Independent(  # noqa: E731
        TransformedDistribution(Normal(torch.zeros_like(lambda_), 1.0), AffineTransform(lambda_, 2.0)), 1
    )
    normal = lambda x, z: Normal(z, 1.0).log_prob(x).sum(-1)  # noqa: E731
    model = VAE(nn.Linear(1, 1), normal, posterior=family)
    with pytest.raises(NotImplementedError):
        _ = family(torch.zeros(1, 1)).mean
    x = torch.linspace(-2, 2, 20)[:, None]
    found = refine_anneal(model, x).log_likelihood.per_example
    assert abs((found - Normal(0.0, math.sqrt(2.0)).log_prob(x[:, 0]).numpy()).mean()) < 0.1


def test_discrete_latents_are_refused_in_one_line():
    prior = Independent(Bernoulli(torch.full((2,), 0.5)), 1)
    model = VAE(nn.Linear(2, 4), lambda x, z: -(x - z).square().sum(-1), prior=prior)
    with pytest.raises(ValueError, match="Boolean") as error:
        refine_anneal(model, torch.zeros(3, 2), budget=SHORT)
    assert "\n" not in str(error.value)


class CountingDecoder(Counted):
    """Counts rows with a gradient twice: once on the way back."""

    def forward(self, x, z):
        before = self.rows
        value = super().forward(x, z)
        self.rows += (self.rows - before) * z.requires_grad
        return value


@pytest.mark.parametrize("budget", [SHORT, plan_budget(1000, 4)])
def test_the_passes_said_are_the_passes_made(budget):
    decoder = CountingDecoder(BernoulliDecoder())
    model = VAE(nn.Linear(20, 8), decoder)
    annealed = refine_anneal(model, [torch.zeros(3, 20)], budget=budget)
    assert decoder.rows == annealed.columns["passes"].sum() <= 3 * budget.cost(4)


@pytest.mark.parametrize("passes", [200, 1000, 4999, 5000, 10_000, 50_000])
@pytest.mark.parametrize("size", [1, 50, 64, 1000])
def test_a_budget_is_used_up_and_not_overdrawn(passes, size):
    budget = plan_budget(passes, size)
    step = 2 * (budget.pilots + budget.chains) * budget.leapfrog
    assert passes - step < budget.cost(size) <= passes and budget.temperatures >= 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": 0}, "passes must be"),
        ({"passes": 100}, "passes must be at least 200"),
        ({"chunk": 0}, "chunk must be"),
        ({"budget": SHORT, "reverse": lambda x, chains: torch.zeros(chains, 1)}, "reverse must return"),
    ],
)
def test_mistakes_are_one_clear_line(change, message):
    model = PPCA()
    with pytest.raises(ValueError, match=message) as error:
        refine_anneal(model, data(model, 3), **change)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="chains must be"):
        Budget(chains=0)
    with pytest.raises(ValueError, match="rounds must be"):
        Budget(rounds=-1)


def test_chains_that_disagree_are_a_warning():
    model = PPCA(latent=6, visible=9).start(torch.full((6,), 3.0).double(), torch.tensor(0.0).double())
    poor = Budget(climb=1, samples=1, rounds=0, draws=1, chains=4, temperatures=2, leapfrog=1)
    assert any("disagree" in line for line in refine_anneal(model, data(model, 10), budget=poor).warnings)


@pytest.mark.parametrize("likelihood", ["Bernoulli", "DiscretisedLogistic"])
def test_a_decoder_that_knows_its_slope_gives_the_numbers_of_autograd(likelihood, monkeypatch):
    from bsvi.nets import likelihoods
    from bsvi.nets.mlp import MLPDecoder

    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
    model = VAE(encoder, MLPDecoder(3, (4, 4), 8, getattr(likelihoods, likelihood)())).double()
    x, calls = torch.bernoulli(torch.full((5, 1, 4, 4), 0.5)).double(), []
    own = base_density.DirectDecoder.find
    monkeypatch.setattr(base_density.DirectDecoder, "find", lambda *a: calls.append(own(*a)) or calls[-1])
    direct = refine_anneal(model, [x], budget=SHORT)
    assert calls and None not in calls
    monkeypatch.setattr(base_density.DirectDecoder, "find", lambda *a: None)
    np.testing.assert_allclose(
        direct.log_likelihood.per_example, refine_anneal(model, [x], budget=SHORT).log_likelihood.per_example, atol=1e-8
    )


def test_a_learned_covariance_is_the_inverse_of_a_bounded_precision():
    from bsvi.evaluation.fit_base import bound_curvature, factor_covariance

    axes = torch.linalg.qr(torch.randn(4, 5, 5, generator=torch.manual_seed(0), dtype=torch.float64)).Q
    curve = torch.tensor([[2.0, 1.0, 0.5, 3.0, 1.0], [2.0, -1.0, 0.01, 3.0, 1.0]] * 2, dtype=torch.float64)
    lower, failed = factor_covariance(bound_curvature(axes * curve[:, None] @ axes.mT))
    wanted = axes / curve.clamp_min(0.1)[:, None] @ axes.mT
    assert not failed.any() and torch.equal(lower, lower.tril())
    torch.testing.assert_close(lower @ lower.mT, wanted, atol=1e-9, rtol=0)


def test_an_example_that_has_learned_all_takes_fewer_passes_and_its_neighbours_change_nothing():
    model = PPCA(latent=6, visible=9)
    x = data(model, 12)
    annealed = refine_anneal(model, [x])
    passes, most = annealed.columns["passes"], plan_budget(1000, 6).cost(6)
    assert (passes < most - 60).all() and annealed.passes == int(passes.mean())
    alone = [
        refine_anneal(model, [(x[i : i + 1], torch.tensor([i]))], batch=lambda b: b[0], ids=lambda b: b[1])
        for i in range(4)
    ]
    for name in annealed.columns:
        np.testing.assert_allclose(
            [each.columns[name][0] for each in alone], annealed.columns[name][:4], atol=1e-7, err_msg=name
        )
