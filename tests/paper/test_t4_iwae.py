"""T4: IWAE tightens with the number of draws and converges as -Var(w / p) / (2 n) (Burda et al.; the paper's eq. 2).

Paired differences on the same draws, each more than 5.3 standard errors above zero: a correct implementation fails with
probability below 1e-7 (the true differences are above 20 standard errors).
"""

from itertools import pairwise

import torch

from bsvi import Uniform, giwae, objective
from tests.oracles import PPCA, mean_and_error

N = 4_000


def grouped_bounds(log_w):
    """IWAE-n for n = 1, 4, 16, 64 from the same 64 draws, (4, batch): groups of n draws, averaged."""
    bounds = []
    for n in (1, 4, 16, 64):
        groups = log_w.unflatten(0, (-1, n)).unbind(0)
        bounds.append(torch.stack([giwae(group, Uniform()(n)) for group in groups]).mean(0))
    return torch.stack(bounds)


def test_iwae_tightens_and_converges():
    model = PPCA().start_wide()
    with torch.no_grad():
        estimate = objective("iwae", k=63)(model, model.batch(N))
    gaps = grouped_bounds(estimate.trajectory.log_w) - model.exact_log_p(model.x)
    torch.testing.assert_close(gaps[-1] + model.exact_log_p(model.x), estimate.bound, rtol=0, atol=1e-10)
    for looser, tighter in pairwise(gaps):
        mean, error = mean_and_error(tighter - looser)
        assert mean > 5.3 * error
    w = (estimate.trajectory.log_w - model.exact_log_p(model.x)).exp()
    expected = -w.var().item() / (2 * 64)
    mean, error = mean_and_error(gaps[-1])
    # the next term of the expansion is of order 1 / n^2
    assert abs(mean - expected) < 5.3 * error + 0.15 * abs(expected)
    assert mean < 0
