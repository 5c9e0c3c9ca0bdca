"""T11 and what else a pixel likelihood must keep."""

import math

import pytest
import torch

from bsvi.nets import Bernoulli, DiscretisedLogistic

LEVELS = torch.arange(256, dtype=torch.float64).view(256, 1, 1, 1) / 255


def logistic(scale, **changes):
    likelihood = DiscretisedLogistic(**changes).double()
    extra = scale - likelihood.minimum
    rho = math.log(math.expm1(extra)) if extra > 0 else -1e4  # softplus(-1e4) is exactly zero
    likelihood.rho.data.fill_(rho)
    return likelihood


@pytest.mark.parametrize("scale", [0.001, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("mean", [-0.2, 0.0, 0.3137, 0.5, 1.0, 1.3])
def test_discretised_logistic_sums_to_one(scale, mean):
    log_prob = logistic(scale).log_prob(LEVELS, torch.full_like(LEVELS, mean - 0.5))
    assert abs(log_prob.exp().sum().item() - 1) < 1e-12


def test_discretised_logistic_is_the_integral_over_each_bin():
    likelihood, params = logistic(0.05), torch.full_like(LEVELS, -0.1)
    edges = (torch.arange(1, 256, dtype=torch.float64) - 0.5) / 255
    cdf = torch.cat([torch.zeros(1), torch.sigmoid((edges - 0.4) / likelihood.scale.detach()), torch.ones(1)])
    assert torch.allclose(likelihood.log_prob(LEVELS, params).exp(), cdf.diff(), atol=1e-14, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_discretised_logistic_keeps_its_gradient_far_from_the_mean(dtype):
    likelihood = logistic(0.001).to(dtype)
    x = torch.tensor([0.0, 100 / 255, 1.0], dtype=dtype).view(3, 1, 1, 1)
    params = torch.tensor([800.0, -900.0, -1000.0], dtype=dtype).view(3, 1, 1, 1).requires_grad_()
    log_prob = likelihood.log_prob(x, params)
    log_prob.sum().backward()
    # so far out each level is worth 1/scale nats per unit of mean, in the direction of the data
    assert torch.isfinite(log_prob).all()
    assert torch.allclose(params.grad.flatten(), torch.tensor([-1000.0, 1000.0, 1000.0], dtype=dtype), rtol=1e-4)
    assert torch.isfinite(likelihood.rho.grad)


def test_the_scale_never_falls_below_its_bound():
    likelihood = DiscretisedLogistic()
    likelihood.rho.data.fill_(-100.0)
    assert likelihood.scale.item() >= 0.001
    assert [name for name, _ in likelihood.named_parameters()] == ["rho"] and likelihood.rho.ndim == 0


def test_bernoulli_agrees_with_torch_at_extreme_logits():
    logits = torch.tensor([-80.0, -3.0, 0.0, 2.0, 80.0]).view(5, 1, 1, 1)
    for value in (0.0, 1.0):
        x = torch.full_like(logits, value)
        want = torch.distributions.Bernoulli(logits=logits).log_prob(x).flatten().double()
        assert torch.allclose(Bernoulli().log_prob(x, logits), want, atol=1e-6)


def test_pixels_are_summed_in_float64():
    # 2^25 + 1: float32 cannot hold the sum
    logits = torch.tensor([2.0**25, 1.0]).view(1, 1, 1, 2)
    total = Bernoulli().log_prob(torch.zeros_like(logits), logits)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(-(2.0**25) - math.log1p(math.e), abs=1e-6)


def test_bernoulli_samples_have_its_probability():
    x = Bernoulli().sample(torch.full((200_000,), 1.0), torch.rand(200_000))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert x.mean().item() == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.006)  # 5.8 standard errors


def test_discretised_logistic_samples_have_its_probabilities():
    likelihood, n = logistic(0.02), 400_000
    for mean in (0.4, 0.99):
        params = torch.full((n,), mean - 0.5, dtype=torch.float64)
        drawn = (likelihood.sample(params, torch.rand(n, dtype=torch.float64)) * 255).round().long()
        want = likelihood.log_prob(LEVELS, torch.full_like(LEVELS, mean - 0.5)).exp()
        counts = torch.bincount(drawn, minlength=256)
        often = want * n > 20
        deviation = (counts - want * n)[often] / (want * n * (1 - want))[often].sqrt()
        assert deviation.abs().max() < 6
        assert counts[~often].sum() <= 10 + 3 * (want[~often].sum() * n)


def test_noise_at_zero_gives_the_lowest_level_and_no_nan():
    assert DiscretisedLogistic().sample(torch.zeros(1), torch.zeros(1)).item() == 0.0
