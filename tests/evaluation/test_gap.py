"""The amortization gap against models on which both gaps are known.

Limits are 6 standard errors of the average over examples plus what the optimisation may miss; the noise is fixed by the seed.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from bsvi import SVI, VAE
from bsvi.evaluation.climb import Climb
from bsvi.evaluation.gap import amortization_gap
from tests.evaluation.oracle import Diagonal, batches, data
from tests.oracles import PPCA, BernoulliDecoder


def near(score, target, missed=0.0):
    assert abs(score.mean - target) <= 6 * score.stderr + missed, (str(score), target)


def test_where_the_family_holds_the_posterior_all_is_amortization():
    model = Diagonal(wider=1.0, shift=0.5)
    x = data(model, 60)
    gap = amortization_gap(model, x, steps=300, k=300)
    exact = model.exact_log_p(x).mean().item()
    near(gap.amortization_gap, model.amortization_gap(), missed=0.02)
    assert -0.005 <= gap.approximation_gap.mean < 0.03
    assert abs(gap.log_likelihood.mean - exact) < 0.02
    assert gap.warnings == ()


def test_a_perfect_encoder_has_no_amortization_gap():
    gap = amortization_gap(Diagonal(), data(Diagonal(), 40), steps=100, k=200)
    assert abs(gap.amortization_gap.mean) < 0.02
    assert (gap.amortization_gap.per_example == 0).mean() > 0.3  # no other q was better: the encoder's was kept
    assert abs(gap.approximation_gap.mean) < 0.02


def test_where_it_does_not_the_approximation_gap_is_that_of_the_mean_field():
    """KL(best diagonal Gaussian || posterior) = (sum ln diag precision - ln det precision) / 2."""
    model = PPCA(latent=4, visible=6).start_wide()
    x = data(model, 60)
    precision = model.exact_posterior(model.x).precision_matrix
    expected = 0.5 * (precision.diagonal().log().sum() - torch.logdet(precision)).item()
    gap = amortization_gap(model, x, steps=400, k=500)
    near(gap.approximation_gap, expected, missed=0.02)
    assert abs(gap.log_likelihood.mean - model.exact_log_p(x).mean().item()) < 0.03
    total = gap.log_likelihood.per_example - gap.amortized_elbo.per_example
    np.testing.assert_allclose(gap.approximation_gap.per_example + gap.amortization_gap.per_example, total, atol=1e-9)
    assert gap.elbo.mean <= model.exact_log_p(x).mean().item() - expected + 6 * gap.approximation_gap.stderr


def test_the_worst_examples_are_those_the_encoder_fails_on():
    class Lapse(Diagonal):
        def encode(self, x):
            lambda_ = super().encode(x)
            return torch.where((x[:, :1] == x[3, 0]) | (x[:, :1] == x[8, 0]), lambda_ + 1.0, lambda_)

    model = Lapse(wider=0.2)
    x = data(model, 20)
    gap = amortization_gap(model, [x], steps=200, k=100, ids=lambda _: torch.arange(100, 120))
    assert sorted(gap.worst(2)) == [103, 108]
    assert gap.summary()["worst"][0] == gap.worst(1)[0]
    assert gap.columns["amortization_gap"][3] > 1 > gap.columns["amortization_gap"][0]


def test_a_climb_that_was_too_short_is_said():
    model = PPCA(latent=4, visible=6).start_wide()
    gap = amortization_gap(model, data(model, 40), steps=10, k=50)
    assert any("best ELBO still rises" in line and "use more steps" in line for line in gap.warnings)


@pytest.mark.parametrize("climb", [None, SVI(steps=30, lr=0.05)])
def test_any_model_and_family_will_do_and_batching_changes_nothing(climb):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder(), lambda v: Independent(Normal(v[:, :4], v[:, 4:].exp()), 1))
    x = torch.rand(20, 20).round()
    options = {"steps": 30, "k": 40, "climb": climb}
    whole = amortization_gap(model, batches(x, 20), **options)
    parts = amortization_gap(model, batches(x, 6, backwards=True), chunk=7, **options)
    for name in whole.columns:
        np.testing.assert_allclose(parts.columns[name], whole.columns[name], rtol=1e-3, atol=1e-4, err_msg=name)
    assert whole.amortization_gap.mean > 0
    assert "amortization gap" in str(whole)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = whole.nothing


def test_a_store_serves_the_gap_too(tmp_path):
    model = Diagonal(wider=0.5)
    x = data(model, 20)
    calls = []
    first = amortization_gap(model, batches(x, 5), steps=20, k=20, store=tmp_path / "store", progress=calls.append)
    model.calls = 0
    again = amortization_gap(model, batches(x, 5), steps=20, k=20, store=tmp_path / "store")
    assert model.calls == 0 and calls == [5, 10, 15, 20]
    np.testing.assert_array_equal(first.columns["elbo"], again.columns["elbo"])
    with pytest.raises(ValueError, match="another evaluation"):
        amortization_gap(model, batches(x, 5), steps=21, k=20, store=tmp_path / "store")


def test_climb_ends_at_the_optimum_it_can_reach():
    """Adam on a parabola with exact gradients: the rate falls to zero, so it stops there."""
    climb, lambda_, state = Climb(steps=200), torch.tensor([[3.0, -2.0]]), None
    for _ in range(200):
        lambda_, state = climb.ascend(lambda_, -(lambda_ - torch.tensor([[1.0, 0.5]])), state)
    torch.testing.assert_close(lambda_, torch.tensor([[1.0, 0.5]]), atol=0.01, rtol=0)
