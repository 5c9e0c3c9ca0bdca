"""bsvi.wrap: distributions in, distributions out; the same numbers as the same model written by hand."""

import math

import numpy as np
import pytest
import torch
from torch import distributions as D
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

import bsvi
from bsvi.adapters.sites import FAMILIES, describe_site
from tests.oracles import FLOAT

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Linear(2, 3)

    def q(self, x):
        mean, log_var = self.encoder(x).chunk(2, -1)
        return Normal(mean, (0.5 * log_var).exp())

    def log_lik(self, x, z):
        return Normal(self.decoder(z), 1.0).log_prob(x).sum(-1)


class Decoder(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, z):
        return Normal(self.net.decoder(z), 1.0).log_prob(x).sum(-1)


def by_hand(net):
    return bsvi.VAE(net.encoder, Decoder(net))


@pytest.mark.parametrize("prior", [None, Normal(0.0, 1.0), Independent(Normal(torch.zeros(2), torch.ones(2)), 1)])
def test_a_gaussian_gives_the_numbers_of_the_model_written_by_hand(prior):
    net = Net()
    wrapped, hand = bsvi.wrap(net.q, net.log_lik, prior=prior), by_hand(net)
    for call in (
        lambda model: bsvi.evaluate(model, X, k=4).columns["log_likelihood"],
        lambda model: bsvi.evaluate(model, X, k=4).columns["kl"],
        lambda model: bsvi.ais(model, X, chains=2, temperatures=5).columns["log_likelihood"],
    ):
        np.testing.assert_allclose(call(wrapped), call(hand), rtol=1e-5)


def test_a_log_standard_deviation_cannot_be_taken_for_a_log_variance():
    """The scale is the standard deviation: whatever it was made from, lambda has its log-variance."""
    net = Net()
    lambda_ = bsvi.wrap(net.q, net.log_lik).encode(X)
    assert torch.allclose(lambda_, net.encoder(X), atol=1e-6)
    log_sd = bsvi.wrap(lambda x: Normal(X[:, :2], X[:, 1:].exp()), net.log_lik, module=net).encode(X)
    assert torch.allclose(log_sd[:, 2:], 2 * X[:, 1:], atol=1e-6)
    for pair in (lambda x: net.encoder(x).chunk(2, -1), lambda x: list(net.encoder(x).chunk(2, -1)), net.encoder):
        with pytest.raises(
            TypeError, match=r"must return a torch Distribution .*return Normal\(mean, log_sd.exp\(\)\)"
        ):
            bsvi.wrap(pair, net.log_lik, module=net).encode(X)
    with pytest.raises(TypeError, match="gave DiagonalGaussian"):
        bsvi.wrap(lambda x: bsvi.DiagonalGaussian(net.encoder(x)), net.log_lik, module=net).encode(X)


def two_sites(net):
    def posterior(x):
        mean, log_var = net.encoder(x).chunk(2, -1)
        return {
            "size": D.Gamma(mean[:, 0].exp(), log_var[:, 0].exp()),
            "place": Normal(mean.expand(4, -1, -1).permute(1, 0, 2), 0.5),
        }

    def log_lik(x, z):
        assert z["size"].shape == x.shape[:1] and z["place"].shape == (len(x), 4, 2)
        return Normal(z["place"].sum((1, 2)), 1.0).log_prob(x[:, 0]) + D.Poisson(z["size"]).log_prob(
            x[:, 1].abs().round()
        )

    prior = {"size": D.Gamma(2.0, 1.0), "place": Normal(torch.zeros(4, 2), 2.0)}
    return bsvi.wrap(posterior, log_lik, prior=prior, module=net)


def test_sites_come_and_go_by_name_and_each_block_is_clipped_by_itself():
    model = two_sites(Net())
    lambda_ = model.encode(X)
    q = model.posterior(lambda_)
    sizes = {"size.concentration": 1, "size.rate": 1, "place.loc": 8, "place.log_variance": 8}
    assert q.blocks == sizes and q.event_shape == (9,)
    made = model.distributions(lambda_)
    assert isinstance(made["size"], D.Gamma) and made["place"].batch_shape == (9, 4, 2)
    z = q.rsample((5,))
    parts = model.structured(z[0])
    by_site = made["size"].log_prob(parts["size"]) + made["place"].log_prob(parts["place"]).sum((1, 2))
    assert torch.allclose(q.log_prob(z)[0], by_site, atol=1e-4)
    assert torch.allclose(
        model.kl(q),
        kl_divergence(made["size"], D.Gamma(2.0, 1.0))
        + kl_divergence(made["place"], Normal(torch.zeros(4, 2), 2.0)).sum((1, 2)),
        atol=1e-4,
    )
    for clip in ("example", "batch"):
        clipped = bsvi.SVI(max_grad_norm=0.1, clip=clip).clipped(torch.full_like(lambda_, 50.0), q)
        for part in clipped.split(list(sizes.values()), -1):
            assert torch.allclose(part.norm(dim=-1 if clip == "example" else None), torch.tensor(0.1))


@pytest.mark.parametrize("method", bsvi.METHODS)
def test_every_method_trains_several_sites(method):
    net = Net()
    model = two_sites(net)
    whole = {"finite_difference": True} if method in ("sa-vae", "bsvi-e2e") else {}  # a Gamma's draw has one derivative
    bsvi.objective(method, k=2, **whole)(model, X).loss.backward()
    assert net.encoder.weight.grad.abs().sum() > 0


def test_several_sites_are_evaluated_and_annealed_and_keep_their_store(tmp_path):
    net = Net()
    first = bsvi.evaluate(two_sites(net), X, k=3, iwae=4, store=tmp_path / "s.jsonl")
    again = bsvi.evaluate(two_sites(net), X, k=3, iwae=4, store=tmp_path / "s.jsonl")  # nothing is computed twice
    assert first.seconds == again.seconds
    annealed = bsvi.ais(two_sites(net), X, chains=16, temperatures=40, leapfrog=4)
    exact = Normal(0.0, math.sqrt(33.0)).log_prob(X[:, 0]) + D.NegativeBinomial(2.0, 0.5).log_prob(
        X[:, 1].abs().round()
    )
    difference = annealed.log_likelihood.per_example - exact.numpy()
    assert abs(difference.mean()) < 0.1 + 6 * difference.std() / 3  # six standard errors


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_family_survives_the_way_to_lambda_and_back(family):
    values = {name: torch.rand(6, 3, dtype=FLOAT) + 0.5 for name in FAMILIES[family]}
    if family is D.MultivariateNormal:
        square = torch.randn(6, 3, 3, dtype=FLOAT)
        values["scale_tril"] = torch.linalg.cholesky(square @ square.mT + torch.eye(3, dtype=FLOAT))
    q = family(**values)
    site, lambda_ = describe_site("z", q, 6)
    assert sum(site.blocks.values()) == lambda_.shape[1]
    z = q.sample((4,))
    log_q = q.log_prob(z)
    torch.testing.assert_close(site.make(lambda_).log_prob(z), log_q)
    torch.testing.assert_close(site.flat(lambda_).log_prob(z), log_q.reshape(4, 6, -1).sum(-1))


def test_a_fixed_transform_is_kept_and_one_with_parameters_is_refused():
    squashed = D.TransformedDistribution(Normal(X, 0.3), [D.SigmoidTransform()])
    site, lambda_ = describe_site("z", squashed, 9)
    z = squashed.sample()
    torch.testing.assert_close(site.make(lambda_).log_prob(z), squashed.log_prob(z))
    with pytest.raises(TypeError, match=r"gave TransformedDistribution for z.*bsvi.VAE"):
        describe_site("z", D.TransformedDistribution(Normal(X, 0.3), [D.AffineTransform(X, 1.0)]), 9)


def test_a_prior_of_x_and_a_log_prior_between_sites():
    net = Net()
    conditional = bsvi.wrap(net.q, net.log_lik, prior=lambda x: Normal(x[:, :2], 1.5))
    written = bsvi.wrap(net.q, net.log_lik, log_prior=lambda z, x: Normal(x[:, :2], 1.5).log_prob(z).sum(-1))
    a, b = (bsvi.evaluate(model, X, k=5).columns["log_likelihood"] for model in (conditional, written))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    assert math.isfinite(bsvi.ais(conditional, X, chains=2, temperatures=5).log_likelihood.mean)
    with pytest.raises(ValueError, match=r"give prior="):
        bsvi.ais(written, X)


def test_mistakes_are_one_clear_line():
    net = Net()
    gamma = lambda x: D.Gamma(x.exp(), 1.0)  # noqa: E731
    for call, message in (
        (
            lambda: bsvi.wrap(gamma, net.log_lik).encode(X),
            "z is a Gamma, and without prior= it would have a unit Gaussian",
        ),
        (lambda: bsvi.wrap(lambda x: D.Poisson(x.exp()), net.log_lik).encode(X), "gave Poisson for z"),
        (lambda: bsvi.wrap(lambda x: Normal(0.0, 1.0), net.log_lik).encode(X), r"batch shape \(9, ...\), got \(\)"),
        (lambda: bsvi.wrap(lambda x: {}, net.log_lik).encode(X), "at least one site"),
        (lambda: bsvi.wrap(net.q, net.log_lik, Normal(0.0, 1.0), log_prior=sum), "give one of them"),
        (
            lambda: bsvi.objective("vae")(bsvi.wrap(net.q, net.log_lik, {"w": Normal(0.0, 1.0)}), X),
            "the sites w, the posterior z",
        ),
        (
            lambda: bsvi.objective("vae")(bsvi.wrap(net.q, net.log_lik, Normal(torch.zeros(7), 1.0)), X),
            r"shape \(7,\), where its z has \(2,\)",
        ),
        (lambda: bsvi.objective("vae")(bsvi.wrap(lambda x: net.q(x), net.log_lik), X), None),
        (lambda: bsvi.objective("vae")(bsvi.wrap(lambda x: net.q(x), lambda x, z: net.log_lik(x, z)), X), "module=net"),
    ):
        if message is None:  # a method brings its module
            call()
            continue
        with pytest.raises((TypeError, ValueError), match=message) as error:
            call()
        assert "\n" not in str(error.value)
