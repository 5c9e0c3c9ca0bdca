"""What a user may bring that is a little out of the ordinary: it works, or it is one line that says what to write."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, Poisson

import bsvi
from bsvi.training.loop import Training, train

SHORT = {"chains": 4, "temperatures": 12, "leapfrog": 3, "pilots": 2}


class Line(nn.Module):
    """x ~ N(a z, I) with a scalar z."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, -0.5, 2.0]))

    def forward(self, x, z):
        return Normal(z[:, None] * self.a, 1.0).log_prob(x).sum(-1)


def scalar_normal(lambda_):
    return Normal(lambda_[..., 0], lambda_[..., 1].exp())


def scalar_model(**options):
    torch.manual_seed(0)
    return bsvi.VAE(nn.Linear(3, 2), Line(), posterior=scalar_normal, **options)


X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("prior", [None, Normal(0.0, 1.0)], ids=["unit", "given"])
def test_a_scalar_latent_is_trained_evaluated_and_annealed(prior):
    model = scalar_model(prior=prior)
    for name in bsvi.METHODS:
        estimate = bsvi.objective(name, k=2)(model, X)
        estimate.loss.backward()
        t = estimate.trajectory
        log_q = scalar_normal(t.lambda_).log_prob(t.z)
        log_lik = torch.stack([model.log_lik(X, z) for z in t.z])
        expected = (log_lik + Normal(0.0, 1.0).log_prob(t.z) - log_q).detach().double()
        torch.testing.assert_close(t.log_w, expected, rtol=0, atol=1e-4)
    a = model.decoder.a.detach()
    exact = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3) + torch.outer(a, a)).log_prob(X)
    scores = bsvi.evaluate(model, X, k=50, iwae=2000)
    np.testing.assert_allclose(scores.iwae[2000].per_example, exact, atol=0.5)
    np.testing.assert_allclose(scores.elbo.per_example, -scores.kl.per_example - scores.reconstruction.per_example)
    annealed = bsvi.ais(model, X, chains=8, temperatures=60)
    np.testing.assert_allclose(annealed.log_likelihood.per_example, exact, atol=0.5)
    assert bsvi.amortization_gap(model, X, steps=5, k=5).elbo.mean < 0
    settings = Training(steps=2, log_every=1)
    assert train(model, bsvi.objective("bsvi", k=2), [X], settings=settings).finished  # its metrics count latents


@pytest.mark.parametrize("name", list(bsvi.METHODS))
def test_parameters_that_are_no_leaves_get_the_same_gradient(name):
    """As torch.func.functional_call puts them in: a meta-learner's fast weights, a hypernetwork's output."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.objective = scalar_model(), bsvi.objective(name, k=2, width=2)

        def forward(self, x):
            return self.objective(self.model, x).loss

    gradients = []
    for called in (False, True):
        both = Both()
        torch.manual_seed(3)
        weights = {key: p * 1.0 for key, p in both.named_parameters()}
        loss = torch.func.functional_call(both, weights, (X,)) if called else both(X)
        loss.backward()
        gradients.append([torch.zeros(()) if p.grad is None else p.grad for p in both.parameters()])
    for plain, swapped in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, swapped)


def test_a_store_takes_bfloat16(tmp_path):
    class Encoder(nn.Linear):
        def forward(self, x):
            return super().forward(x.float())

    model = bsvi.VAE(Encoder(3, 2), Line(), posterior=scalar_normal)
    first = bsvi.evaluate(model, X.bfloat16(), k=3, store=tmp_path / "store")
    again = bsvi.evaluate(model, X.bfloat16(), k=3, store=tmp_path / "store")
    np.testing.assert_array_equal(first.log_likelihood.per_example, again.log_likelihood.per_example)


@pytest.mark.usefixtures("as_users_call")
def test_numpys_integers_are_whole_numbers(tmp_path):
    model, three = scalar_model(), np.int64(3)
    plain = bsvi.evaluate(model, X, k=3, iwae=(4,), seed=3, elbo_draws=3, store=tmp_path / "scores")
    numpys = {"k": three, "iwae": np.int32(4), "seed": np.uint8(3), "elbo_draws": three, "chunk": three}
    same = bsvi.evaluate(model, X, store=tmp_path / "scores", **numpys)
    assert list(same.iwae) == [4]
    np.testing.assert_array_equal(plain.elbo.per_example, same.elbo.per_example)
    bsvi.amortization_gap(model, X, steps=three, k=three, seed=three, store=tmp_path / "gap")
    bsvi.ais(model, X, **{name: np.int64(value) for name, value in SHORT.items()}, store=tmp_path / "ais")
    svi = bsvi.SVI(steps=three, samples=np.int64(2))
    assert svi == bsvi.SVI(steps=3, samples=2) and str(svi) == str(bsvi.SVI(steps=3, samples=2))
    for name in bsvi.METHODS:
        bsvi.objective(name, k=three, svi=svi, resampled=three)(model, X).loss.backward()
    for wrong in (2.5, True, "3", None):
        with pytest.raises(ValueError, match="must be a whole number, got") as error:
            bsvi.evaluate(model, X, k=wrong)
        assert "\n" not in str(error.value)


def test_one_number_for_iwae_means_that_one():
    assert list(bsvi.evaluate(scalar_model(), X, k=2, iwae=10).iwae) == [10]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (list("abcdef"), "got list ('a', 'b', 'c'); number the examples"),
        (np.array(list("abcdef")), "got ndarray ('a', 'b', 'c'); number the examples"),
        ([None] * 6, "got list (None, None, None); number the examples"),
        (torch.rand(6) > 2, "got torch.bool (6,) (False, False, False); number the examples"),
        (np.arange(6, dtype=np.uint64) + np.uint64(2**63), "below 2**63, got uint64 (9223372036854775808"),
        (
            torch.tensor([7, 2, 3, 4, 5, 7]),
            "id 7 comes twice, and labels are no ids",
        ),
    ],
    ids=["strings", "numpy strings", "none", "bool", "uint64", "labels"],
)
def test_things_that_are_no_ids_are_named(ids, message):
    with pytest.raises(ValueError) as error:
        bsvi.evaluate(scalar_model(), [X], k=2, ids=lambda _: ids)
    assert message in str(error.value) and "batches of x alone" in str(error.value) and "\n" not in str(error.value)


def test_small_uint64_ids_are_ids():
    assert bsvi.evaluate(scalar_model(), X, k=2, ids=lambda _: np.arange(6, dtype=np.uint64)).ids.tolist() == list(
        range(6)
    )


def test_a_family_without_rsample_is_named():
    model = bsvi.VAE(nn.Linear(3, 1), Line(), posterior=lambda lambda_: Poisson(lambda_[..., 0].exp()))
    for call in (lambda: bsvi.objective("bsvi")(model, X), lambda: bsvi.evaluate(model, X, k=2)):
        with pytest.raises(TypeError, match=r"posterior\(lambda_\) gave Poisson.*; use a family with rsample"):
            call()
