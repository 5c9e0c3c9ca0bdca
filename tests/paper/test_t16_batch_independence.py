"""T16: with the same noise an example gives the same numbers whatever batch it comes in. Deterministic; float32, 1e-4."""

import pytest
import torch
from torch import nn

from bsvi import METHODS, SVI, VAE, DiagonalGaussian, objective
from tests.oracles import BernoulliDecoder

N = 60


class KeyedNoise:
    """A posterior whose noise belongs to the example, not to its place in the batch."""

    def __init__(self, latent):
        rng = torch.Generator().manual_seed(8)
        self.table, self.ids, self.call = torch.randn(16, 4, N, latent, generator=rng), slice(None), 0

    def __call__(self, lambda_):
        made = Keyed(lambda_)
        made.noise = self
        return made


class Keyed(DiagonalGaussian):
    def rsample(self, sample_shape=()):
        self.noise.call += 1
        eps = self.noise.table[self.noise.call, : sample_shape[0], self.noise.ids]
        return self.loc + (0.5 * self.log_var).exp() * eps


def bounds(model, noise, method, x, size):
    result = []
    for start in range(0, N, size):
        noise.ids, noise.call = slice(start, start + size), -1
        with torch.no_grad():
            result.append(method(model, x[start : start + size]).bound)
    return torch.cat(result)


def check_batch_independence(name="bsvi", svi=None):
    torch.manual_seed(0)
    noise = KeyedNoise(latent=4)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder(), posterior=noise)
    x = torch.rand(N, 20).round()
    method = objective(name, k=3, svi=SVI(lr=0.1, max_grad_norm=1.0) if svi is None else svi)
    whole = bounds(model, noise, method, x, N)
    for size in (1, 7, 50):
        torch.testing.assert_close(bounds(model, noise, method, x, size), whole, rtol=0, atol=1e-4)
    return whole


@pytest.mark.parametrize("name", METHODS)
def test_an_examples_bound_does_not_depend_on_its_batch(name):
    check_batch_independence(name)


def test_the_literal_form_of_kim_et_al_does_depend_on_it():
    """Why ``clip="batch"`` is not the default: the check above can fail, and this is what it looks like."""
    with pytest.raises(AssertionError):
        check_batch_independence("bsvi", SVI(lr=1.0, max_grad_norm=1.0, clip="batch"))
