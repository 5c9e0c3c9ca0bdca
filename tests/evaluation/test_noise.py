"""The examples' own noise: it has the right law, and it is a function of the example alone.

Statistical limits are at 6 standard errors, two-sided: false alarm 2e-9 each, below 1e-6 together. The noise is a function of
fixed words, so on one machine the outcome never changes.
"""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

from bsvi import VAE, DiagonalGaussian
from bsvi.evaluation.noise import KeyedModel, Noise, mix


def near(value, target, error):
    assert abs(float(value) - target) <= 6 * error, (float(value), target, error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 5])
def test_normals_have_the_moments_and_the_tail_of_a_normal(dtype, size):
    x = Noise(torch.arange(40), 3).normal(0, 5000, size, dtype).double().flatten()
    n = len(x)
    near(x.mean(), 0, 1 / math.sqrt(n))
    near(x.square().mean(), 1, math.sqrt(2 / n))
    near((x**3).mean(), 0, math.sqrt(15 / n))
    near((x**4).mean(), 3, math.sqrt(96 / n))
    for limit in (2.0, 3.0, 4.0):
        p = math.erfc(limit / math.sqrt(2))
        near((x.abs() > limit).double().mean(), p, math.sqrt(p / n))


def test_normals_and_uniforms_pass_kolmogorov_smirnov():
    noise = Noise(torch.arange(100), 1)
    assert scipy.stats.kstest(noise.normal(0, 500, 3).flatten().numpy(), "norm").pvalue > 1e-8
    uniform = noise.uniform(0, 500, 3)
    assert scipy.stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-8
    assert uniform.min() > 0 and uniform.max() < 1
    assert Noise(torch.arange(300), 1).uniform(0, 30_000, 1, torch.float32).max() < 1  # float32 rounds up


def correlations(a, b):
    """All correlations between the columns of a and of b, in standard errors."""
    return (a.T @ b) / math.sqrt(len(a))


def test_examples_draws_coordinates_and_streams_are_not_correlated():
    """Neighbouring ids, neighbouring draws, coordinates of one word, seeds and streams; over 10,000 pairs, so 7 standard
    errors (2.6e-12 each)."""
    x = Noise(torch.arange(10), 0, 1).normal(0, 40_000, 4)
    columns = x.reshape(40_000, -1)
    same = correlations(columns, columns).fill_diagonal_(0)
    assert same.abs().max() < 7
    assert correlations(columns[1:], columns[:-1]).abs().max() < 7
    for other in (Noise(torch.arange(10), 0, 2), Noise(torch.arange(10), 1, 1), Noise(torch.arange(10, 20), 0, 1)):
        assert correlations(columns, other.normal(0, 40_000, 4).reshape(40_000, -1)).abs().max() < 7
    squares = (columns**2 - 1) / math.sqrt(2)  # Box-Muller's pairs share a radius: their squares must not show it
    assert correlations(squares, squares).fill_diagonal_(0).abs().max() < 8


@pytest.mark.parametrize("size", [1, 2, 4])
def test_normal_and_uniform_numbers_share_no_bits(size):
    """An accept decision made with the bits of its own momentum biases AIS: one coordinate, -1.35 for -1.27 nats."""
    noise = Noise(torch.arange(10), 0)
    normal, uniform = noise.normal(0, 20_000, size).abs(), noise.uniform(0, 20_000, 2)
    for i in range(size):
        for j in range(2):
            rank = scipy.stats.spearmanr(normal[..., i].flatten(), uniform[..., j].flatten()).statistic
            assert abs(rank) < 6 / math.sqrt(200_000)


def test_mix_is_splitmix64():
    """The finaliser in unsigned Python integers."""
    words = [0, 1, 2**63 - 1, 123456789, -1, -(2**63)]
    for word, got in zip(words, mix(torch.tensor(words)).tolist(), strict=True):
        w = word % 2**64
        w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        w = (w ^ (w >> 27)) * 0x94D049BB133111EB % 2**64
        assert got % 2**64 == w ^ (w >> 31)


FAMILIES = {
    "diagonal": DiagonalGaussian,
    "independent": lambda v: Independent(Normal(v[:, :3], v[:, 3:].exp()), 1),
    "laplace": lambda v: Independent(Laplace(v[:, :3], v[:, 3:].exp()), 1),
    "full covariance": lambda v: MultivariateNormal(v[:, :3], torch.eye(3) + 0.1),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_example_draws_the_same_in_any_batch_and_any_chunks(name):
    lambda_ = torch.randn(6, 6)
    state = torch.get_rng_state()

    def draw(ids, chunks):
        q = KeyedModel(
            VAE(torch.nn.Identity(), torch.nn.Identity(), FAMILIES[name]), 0, 1, torch.tensor(ids)
        ).posterior(lambda_[ids])
        return torch.cat([q.rsample((rows,)) for rows in chunks])

    whole = draw([0, 1, 2, 3, 4, 5], [7])
    torch.testing.assert_close(draw([0, 1, 2, 3, 4, 5], [1, 4, 2]), whole)
    torch.testing.assert_close(draw([4, 1], [3, 3, 1]), whole[:, [4, 1]])
    assert len(np.unique(whole.numpy())) == whole.numel()
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator was left alone
