"""Diagnostics: streamed as they are defined, k-hat against known tails, and warnings when they are due.

False alarms: averages of k-hat over 400 examples have a standard error of at most 0.01; limits are 8 of them.
"""

import math

import numpy as np
import pytest
import torch

from bsvi import SVI
from bsvi.evaluation.diagnostics import Tally, pareto_khat, tail_size
from bsvi.evaluation.doubts import list_doubts
from bsvi.evaluation.evaluate import evaluate
from tests.evaluation.oracle import Diagonal, data
from tests.oracles import FLOAT, PPCA


def pareto_log_weights(k, draws=2500, examples=400):
    """ln of weights that are exactly generalised Pareto with shape k."""
    u = torch.rand(draws, examples, dtype=FLOAT)
    return ((u**-k - 1) / k).log()


@pytest.mark.parametrize("cuts", [[1000], [1] * 1000, [7, 300, 64, 129, 500]])
def test_a_tally_in_pieces_is_the_tally_of_the_whole(cuts):
    log_w = torch.randn(1000, 5, dtype=FLOAT) * 2 - 2000
    log_w[3, 1] = math.nan
    log_w[4, 1] = -math.inf
    tally = Tally(1000, marks=(10, 333))
    for piece in log_w.split(cuts):
        tally.add(piece)
    clean = log_w.nan_to_num(-math.inf, neginf=-math.inf)
    for n in (10, 333, 1000):
        torch.testing.assert_close(tally.log_mean[n], torch.logsumexp(clean[:n], 0) - math.log(n), rtol=0, atol=1e-10)
    w = (clean - clean.max()).exp()
    torch.testing.assert_close(tally.ess(), w.sum(0) ** 2 / w.square().sum(0), rtol=1e-9, atol=0)
    torch.testing.assert_close(tally.mean_log(), clean.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(tally.khat(), pareto_khat(clean), rtol=1e-12, atol=0)
    assert tally.nonfinite.tolist() == [0, 2, 0, 0, 0]
    with pytest.raises(ValueError, match="made for 1000"):
        tally.add(log_w[:1])


def test_a_tally_keeps_a_tail_and_no_more():
    tally = Tally(100_000)
    for _ in range(100):
        tally.add(torch.randn(1000, 2))
    assert len(tally.top) == tail_size(100_000) + 1 == 950


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_khat_finds_a_known_tail(k):
    khat = pareto_khat(pareto_log_weights(k))
    pulled = (150 * k + 5) / 160  # the weak prior's pull towards 0.5 with a tail of 150
    assert abs(khat.mean().item() - pulled) < 0.08
    assert khat.std() < 0.25
    share = (khat > 0.7).double().mean().item()
    assert share < 0.12 if k < 0.7 else share > 0.7


def test_khat_does_not_depend_on_the_scale_of_the_weights():
    log_w = pareto_log_weights(0.5)
    torch.testing.assert_close(pareto_khat(log_w - 5000), pareto_khat(log_w), rtol=0, atol=1e-8)


def test_khat_of_normal_log_weights_grows_with_their_spread():
    """Log-normal weights have all moments; at a finite number of draws the fit sees the spread."""
    mild, wild = (pareto_khat(s * torch.randn(2500, 200, dtype=FLOAT)).mean().item() for s in (0.3, 3.0))
    assert mild < 0.3 and wild > 0.8


def test_khat_of_degenerate_weights():
    assert pareto_khat(torch.zeros(500, 2)).tolist() == [0.0, 0.0]
    assert pareto_khat(torch.randn(20, 2)).isnan().all()
    one = torch.full((500, 1), -math.inf)
    one[7] = 0.0
    assert pareto_khat(one).item() > 0.7
    assert torch.isfinite(pareto_khat(torch.cat([1e-14 * torch.rand(499, 1), torch.ones(1, 1)])))


def test_a_good_proposal_gives_no_warning():
    model = Diagonal(wider=0.3)
    scores = evaluate(model, data(model, 50), k=100, iwae=(200,))
    assert scores.warnings == ()
    assert scores.diagnostics["khat_above_0.7"]["iwae"] < 0.05
    assert scores.diagnostics["iwae_ess"]["mean"] > 150


def test_heavy_tails_and_a_rising_bound_are_said_with_what_to_try():
    """Narrow, off-centre proposals: variances of a posterior in 8 dimensions shrunk by e^3, no movement to speak of."""
    model = PPCA(latent=8, visible=10)
    posterior = model.exact_posterior(model.x)
    model.start(posterior.mean + 0.3, posterior.variance.log().mean() - 3.0)
    scores = evaluate(model, data(model, 50), k=100, svi=SVI(lr=1e-6), iwae=(200,))
    for title in ("BSVI-100", "IWAE-200"):
        lines = [line for line in scores.warnings if title in line]
        assert any("k-hat is above 0.7" in line for line in lines)
        assert any("effective weights" in line for line in lines)
        assert any("still rising" in line for line in lines)
        assert all("use a larger k" in line and "\n" not in line for line in lines)
    assert scores.diagnostics["khat_above_0.7"]["iwae"] > 0.5


def test_a_rise_is_judged_by_its_paired_error():
    n = 400
    values = {name: np.zeros(n) for name in ("x_nonfinite", "x_khat")} | {"x_ess": np.full(n, 100.0)}
    rng = np.random.default_rng(0)
    assert not list_doubts("t", "x", values | {"x_rise": 0.15 + 3.0 * rng.standard_normal(n)}, 500)
    assert not list_doubts("t", "x", values | {"x_rise": 0.05 + 0.1 * rng.standard_normal(n)}, 500)
    assert "still rising" in list_doubts("t", "x", values | {"x_rise": 0.15 + 0.3 * rng.standard_normal(n)}, 500)[0]
