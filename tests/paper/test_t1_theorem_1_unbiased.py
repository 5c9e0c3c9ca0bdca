"""T1, T1b: E[sum_i pi_i w_i] = p(x), with dependent draws, momentum, clipping, m > 1, double sampling and any pi.

The weights are bounded here (oracles.start_wide) and R = sum_i pi_i w_i / p(x) has a standard deviation of about 0.85,
so over N = 200,000 draws a tolerance of 0.02 is more than 10 standard errors: false alarm below 1e-20.
"""

from dataclasses import replace

import pytest
import torch

from bsvi import SVI, giwae
from bsvi.beyond.end_to_end import EndToEnd
from bsvi.beyond.updates import Network
from bsvi.objectives import Objective
from tests.oracles import PPCA

N = 200_000
T1_SVI = SVI(steps=3, lr=0.2, momentum=0.5, max_grad_norm=1.0)


class Given(torch.nn.Module):
    """A buffer weight that is neither uniform nor learned."""

    def forward(self, draws):
        return torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()


def ratio(svi=T1_SVI, buffer_weight=None, n=N, seed=3):
    """R = sum_i pi_i w_i / p(x) for n independent trajectories of one x."""
    torch.manual_seed(seed)
    model = PPCA().start_wide()
    x = model.batch(n)
    with torch.no_grad():
        estimate = Objective(svi, buffer_weight)(model, x)
    return (estimate.bound - model.exact_log_p(model.x)).exp(), estimate, model


def check_unbiased(**settings):
    R, _, _ = ratio(**settings)
    assert R.std() < 1.3  # else the tolerance would not be 10 standard errors
    assert abs(R.mean().item() - 1.0) <= 0.02


@pytest.mark.parametrize(
    ("svi", "buffer_weight"),
    [
        (T1_SVI, None),
        (T1_SVI, Given()),
        (replace(T1_SVI, momentum=0.0, max_grad_norm=float("inf"), lr=0.02), None),
        (replace(T1_SVI, double_sampling=True), Given()),
        (replace(T1_SVI, closed_form_kl=True), None),
        (replace(T1_SVI, samples=3, double_sampling=True), Given()),
    ],
    ids=["uniform", "given pi", "no momentum, no clipping", "double sampling", "closed-form KL gradient", "m = 3"],
)
def test_the_weighted_sum_is_an_unbiased_estimate_of_p_x(svi, buffer_weight):
    check_unbiased(svi=svi, buffer_weight=buffer_weight, n=N if svi.samples == 1 else N // 2)


def test_each_weight_alone_is_unbiased():
    _, estimate, model = ratio()
    w = (estimate.trajectory.log_w - model.exact_log_p(model.x)).exp()
    assert w.shape == (4, N)
    # 0.02 is then more than 5.5 standard errors for each of the 4 rows: below 2e-7 together
    assert w.std(dim=1).max() < 1.6
    assert (w.mean(dim=1) - 1.0).abs().max() <= 0.02


def test_m_samples_per_step_weigh_as_their_average():
    _, estimate, _ = ratio(svi=replace(T1_SVI, samples=3), buffer_weight=Given(), n=1_000)
    assert estimate.trajectory.log_w.shape == (12, 1_000)
    averaged = giwae(estimate.trajectory.per_proposal(), Given()(4))
    torch.testing.assert_close(averaged, estimate.bound, rtol=0, atol=1e-12)


def trained_rates(svi=T1_SVI):
    """Rates that training might have left: each step and coordinate another, within the region where weights are bounded."""
    walk = EndToEnd(svi).double()
    with torch.no_grad():
        walk.update.log_rates.add_(torch.tensor([[0.3], [-0.5], [0.1]]))
    return walk


def trained_network():
    torch.manual_seed(1)
    return EndToEnd(T1_SVI, Network(width=4, hidden=8), second_order=False).double()


def check_unbiased_end_to_end():
    check_unbiased(svi=trained_rates(), buffer_weight=Given(), n=N // 2)


def test_trained_rates_leave_it_unbiased():
    check_unbiased_end_to_end()


def test_trained_rates_with_double_sampling_and_samples_leave_it_unbiased():
    check_unbiased(svi=trained_rates(replace(T1_SVI, samples=2, double_sampling=True)), n=N // 2)


def test_iterative_inference_leaves_it_unbiased():
    check_unbiased(svi=trained_network(), n=N // 2)
