"""T8: the resampled index follows r, and theta's resampled gradient is unbiased (Lemma 1, section 5).

Chi-square over 100,000 draws, p > 1e-7; means within 5.5 standard errors: false alarm below 1e-6 together.
"""

import pytest
import scipy.stats
import torch

from bsvi import Learned, Objective, Resampled, objective, responsibilities, theta
from bsvi.refinement import Refined
from tests.oracles import FLOAT
from tests.paper.test_t7_gradients import QUICK, lemma_gradient, make

N = 100_000


def check_index():
    """Every row of z says which row it is; resampled for N copies of one example with a pi that is not uniform."""
    log_w = torch.tensor([0.3, -0.5, 1.0, 0.1], dtype=FLOAT)
    log_pi = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=FLOAT).log()
    r = responsibilities(log_w[:, None], log_pi)
    z = torch.arange(4.0)[:, None, None].expand(4, N, 1)
    counts = torch.bincount(theta.resample(z, r.expand(4, N), 1).flatten().long(), minlength=4)
    assert scipy.stats.chisquare(counts.numpy(), (r[:, 0] * N).numpy()).pvalue > 1e-7


def test_the_index_follows_the_responsibilities():
    check_index()


class Fixed:
    """A refinement that returns the same trajectory every time, so that resampling is the only chance left."""

    def __init__(self, trajectory):
        self.trajectory = trajectory

    def __call__(self, model, x, beta=1.0, attach=None, budget=None):
        return Refined(self.trajectory, torch.zeros(len(x), dtype=FLOAT))


def check_gradient(draws=1, copies=200, repeats=100):
    """One batch of trajectories is resampled 20,000 times with a pi far from uniform: the mean gradient is the full one."""
    model = make()
    buffer_weight = Learned(5)
    with torch.no_grad():
        buffer_weight.logits.copy_(torch.linspace(-1.5, 1.5, 5))
    trajectory, _ = QUICK(model, model.batch(7 * copies), 1.0, 0)
    first = {name: value[:, :7] for name, value in vars(trajectory).items() if name not in ("samples", "kept")}
    fixed = type(trajectory)(**{name: v.repeat(1, copies, *[1] * (v.ndim - 2)) for name, v in first.items()})
    method = Objective(Fixed(fixed), buffer_weight, Resampled(draws))
    gradients = []
    for _ in range(repeats):
        model.zero_grad()
        method(model, model.batch(7 * copies)).loss.backward()
        gradients.append(torch.cat([model.W.grad.flatten(), model.b.grad]))
    gradients = torch.stack(gradients)
    weights = first["log_w"].exp() * buffer_weight(5).detach().exp()[:, None]
    expected = lemma_gradient(model, model.batch(7), first["z"], weights / weights.sum(0))
    z = (gradients.mean(0) - torch.cat([g.flatten() for g in expected])) / (gradients.std(0) / repeats**0.5)
    assert z.abs().max() < 7.5  # Student's t with 99 degrees of freedom: 3e-11 each, 20 of them


@pytest.mark.parametrize("draws", [1, 3])
def test_the_resampled_gradient_is_unbiased(draws):
    check_gradient(draws)


def test_more_resampled_draws_make_the_gradient_less_noisy():
    def noise(draws):
        values = []
        model = make()
        trajectory, _ = QUICK(model, model.batch(5), 1.0, 0)
        r = responsibilities(trajectory.log_w, torch.zeros(5, dtype=FLOAT).log_softmax(0))
        for _ in range(400):
            model.zero_grad()
            Resampled(draws)(model, model.batch(5), 1.0, trajectory, r).backward()
            values.append(model.b.grad.clone())
        return torch.stack(values).var(0).mean().item()

    # m draws divide the variance by m = 8; with 400 repetitions a ratio of 4 lies more than 5 standard deviations away
    assert noise(1) > 4 * noise(8)


def test_resampling_keeps_the_bounds_value():
    model = make()
    for name in ("bsvi-sir", "bsvi-sir-pi"):
        estimate = objective(name, k=4, svi=QUICK, resampled=3)(model, model.batch(9))
        assert estimate.loss.item() == -estimate.bound.mean().item()


def test_an_example_without_any_weight_resamples_by_pi():
    r = responsibilities(torch.full((3, 2), -torch.inf), torch.tensor([0.2, 0.3, 0.5]).log())
    torch.testing.assert_close(r, torch.tensor([0.2, 0.3, 0.5])[:, None].expand(3, 2))
