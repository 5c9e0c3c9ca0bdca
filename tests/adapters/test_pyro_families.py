"""``bsvi.adapters.pyro`` with guides that are not Gaussian, against exact conjugate models."""

import math

import pytest
import torch
from torch import nn

import bsvi

pyro = pytest.importorskip("pyro", reason="needs pyro-ppl; ./run test-adapters has it")
import pyro.distributions as dist  # noqa: E402

N = 12


@pytest.fixture(autouse=True)
def _an_empty_store():
    pyro.clear_param_store()


class Conjugate(nn.Module):
    """Counts with a Gamma rate, hits with a Beta chance, words with Dirichlet shares, and a log-normal size.

    The guide is the exact posterior of each where ``shift`` is 0.
    """

    def __init__(self, shift=0.0):
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))
        self.register_buffer("alpha", torch.tensor([0.7, 1.5, 3.0]))

    def model(self, counts, hits, words, size):
        with pyro.plate("data", len(counts)):
            rate = pyro.sample("rate", dist.Gamma(2.0, 0.5))
            chance = pyro.sample("chance", dist.Beta(0.8, 2.0))
            share = pyro.sample("share", dist.Dirichlet(self.alpha))
            scale = pyro.sample("scale", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("counts", dist.Poisson(rate), obs=counts)
            pyro.sample("hits", dist.Binomial(10, chance), obs=hits)
            pyro.sample("words", dist.Multinomial(8, share), obs=words)
            pyro.sample("size", dist.Normal(scale.log(), 0.5).to_event(1), obs=size)

    def guide(self, counts, hits, words, size):
        up = self.shift.exp()
        with pyro.plate("data", len(counts)):
            pyro.sample("rate", dist.Gamma(up * (2.0 + counts), 1.5))
            pyro.sample("chance", dist.Beta(up * (0.8 + hits), 12.0 - hits))
            pyro.sample("share", dist.Dirichlet(up * (self.alpha + words)))
            pyro.sample("scale", dist.LogNormal(0.8 * size, up * math.sqrt(0.2)).to_event(1))


def make_data(seed=0):
    torch.manual_seed(seed)
    words = dist.Multinomial(8, torch.tensor([0.2, 0.3, 0.5])).sample((N,))
    hits = dist.Binomial(10, torch.linspace(0.1, 0.9, N)).sample()
    return {"counts": torch.poisson(torch.full((N,), 4.0)), "hits": hits, "words": words, "size": torch.randn(N, 2)}


def find_exact(x):
    """ln p(x): a negative binomial's, a beta-binomial's, a Dirichlet-multinomial's and a Gaussian's."""
    alpha = torch.tensor([0.7, 1.5, 3.0])
    return (
        dist.GammaPoisson(torch.tensor(2.0), torch.tensor(0.5)).log_prob(x["counts"])
        + dist.BetaBinomial(torch.tensor(0.8), torch.tensor(2.0), 10).log_prob(x["hits"])
        + dist.DirichletMultinomial(alpha, 8).log_prob(x["words"])
        + dist.Normal(0.0, math.sqrt(1.25)).log_prob(x["size"]).sum(-1)
    ).double()


def test_every_bound_of_the_exact_posterior_is_ln_p():
    x, module = make_data(), Conjugate()
    model = bsvi.adapters.pyro(module.model, module.guide)
    scores = bsvi.evaluate(model, x, k=1, iwae=5)
    assert torch.allclose(torch.from_numpy(scores.iwae[5].per_example), find_exact(x), atol=1e-3)
    assert model.kl(model.posterior(model.encode(x)), x).shape == (N,)


def test_a_wrong_guide_is_refined_and_annealed_to_ln_p():
    x, module = make_data(), Conjugate(shift=0.5)
    model = bsvi.adapters.pyro(module.model, module.guide)
    exact = find_exact(x)
    refined = bsvi.refine(model, x, steps=300)
    assert refined.gain.mean > 0.3 and abs((torch.from_numpy(refined.elbo.per_example) - exact).mean()) < 0.1
    assert isinstance(refined.q()["rate"], torch.distributions.Gamma) and refined.mean["share"].shape == (N, 3)
    for found in (bsvi.ais(model, x, chains=16, temperatures=60, leapfrog=4), bsvi.refine_anneal(model, x, passes=600)):
        difference = torch.from_numpy(found.log_likelihood.per_example) - exact
        assert abs(difference.mean()) < 0.05 + 6 * difference.std() / math.sqrt(N), difference


def test_every_parameter_of_every_site_is_clipped_by_itself():
    x, module = make_data(), Conjugate()
    model = bsvi.adapters.pyro(module.model, module.guide)
    lambda_ = model.encode(x)
    q = model.posterior(lambda_)
    sizes = {
        "rate.concentration": 1,
        "rate.rate": 1,
        "chance.concentration1": 1,
        "chance.concentration0": 1,
        "share.concentration": 3,
        "scale.loc": 2,
        "scale.log_variance": 2,
    }
    assert q.blocks == sizes
    clipped = bsvi.SVI(max_grad_norm=0.1).clipped(torch.full_like(lambda_, 50.0), q)
    for part in clipped.split(list(sizes.values()), -1):
        assert torch.allclose(part.norm(dim=-1), torch.tensor(0.1))


@pytest.mark.parametrize("method", ["vae", "iwae", "bsvi-sir", "bsvi-pi"])
def test_every_method_trains_such_a_guide(method):
    x, module = make_data(), Conjugate(shift=0.5)
    model, objective = bsvi.adapters.pyro(module.model, module.guide), bsvi.objective(method, k=3)
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        objective(model, x).loss.backward()
        optimizer.step()
    assert module.shift.abs() < 0.25  # 0 is the exact posterior


def test_a_store_knows_a_model_that_was_used_before(tmp_path):
    x, module = make_data(), Conjugate()
    model = bsvi.adapters.pyro(module.model, module.guide)
    first = bsvi.evaluate(model, x, k=2, iwae=2, store=tmp_path / "store")
    assert bsvi.evaluate(model, x, k=2, iwae=2, store=tmp_path / "store").seconds == first.seconds


def test_a_dependent_site_is_refused_by_name_for_any_family():
    def both(x):
        with pyro.plate("data", len(x)):
            rate = pyro.sample("rate", dist.Gamma(2.0 + x[:, 0].exp(), 1.0))
            pyro.sample("share", dist.Beta(rate, 1.0))

    with pytest.raises(ValueError, match="site 'share' of the guide depends on the latents before it"):
        bsvi.adapters.pyro(both, both).encode(torch.randn(5, 2))


def test_fixed_transforms_and_triangles_are_taken():
    torch.manual_seed(0)
    x = torch.randn(5, 2)

    def both(x):
        normal = dist.Normal(x, 0.3)
        with pyro.plate("data", len(x)):
            pyro.sample("chance", dist.TransformedDistribution(normal, dist.transforms.SigmoidTransform()).to_event(1))
            pyro.sample("place", dist.MultivariateNormal(x, scale_tril=torch.tensor([[1.0, 0.0], [0.5, 2.0]])))

    model = bsvi.adapters.pyro(both, both)
    q = model.posterior(model.encode(x))
    z = q.rsample()
    assert torch.allclose(q.log_prob(z), model.log_prior(z, x), atol=1e-4)
    assert set(q.blocks) == {"chance.loc", "chance.log_variance", "place.loc", "place.log_variance", "place.below"}
