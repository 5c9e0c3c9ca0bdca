"""Steps without autograd: a decoder that knows its derivative gives what autograd gives; any other model goes the usual way."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import bsvi
from bsvi.direct import DirectProposals, find_direct
from bsvi.evaluation.noise import KeyedModel
from bsvi.model import DiagonalGaussian
from bsvi.nets import Bernoulli, DiscretisedLogistic, MLPDecoder, MLPEncoder

LIKELIHOODS = {"bernoulli": Bernoulli, "logistic": DiscretisedLogistic}


def make(kind="bernoulli", dtype=torch.float64, image=(4, 6)):
    torch.manual_seed(3)
    decoder = MLPDecoder(5, image, 16, likelihood=LIKELIHOODS[kind]())
    with torch.no_grad():
        for parameter in decoder.net.parameters():
            parameter.mul_(2.0)
    return bsvi.VAE(MLPEncoder(5, image, 16), decoder).to(dtype)


def images(kind, count=12, image=(4, 6), dtype=torch.float64):
    grey = torch.rand(count, 1, *image, generator=torch.Generator().manual_seed(4), dtype=dtype)
    levels = (grey * 1.6 - 0.3).clamp(0, 1).mul(255).round() / 255  # black and white too
    return levels.round() if kind == "bernoulli" else levels


def by_autograd(model):
    """The same model, made to go the usual way: something of the decoder was replaced."""
    model.decoder.params = model.decoder.params
    return model


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_a_decoder_s_own_derivative_is_that_of_autograd(kind, dtype, near, scale):
    model, x = make(kind, dtype), images(kind, dtype=dtype)
    z = scale * torch.randn(len(x), 5, dtype=dtype)
    with torch.no_grad():
        model.decoder.net[-1].weight.mul_(scale)  # far out: pixels that are nearly impossible
        value, slope = model.decoder.slopes(x)(z)
    z.requires_grad_()
    want = model.decoder(x, z)
    (wanted,) = torch.autograd.grad(want.sum(), z)
    assert torch.allclose(value, want, rtol=near, atol=near) and value.dtype == torch.float64
    assert (slope - wanted).abs().max() <= near * wanted.abs().max() and slope.abs().max() > 0


@pytest.mark.parametrize("samples", [1, 3])
def test_a_gaussian_s_own_gradient_is_that_of_autograd(samples):
    """Clamped log-variances and a draw of weight zero included."""
    lambda_ = torch.randn(7, 6, dtype=torch.float64)
    lambda_[0, 5], lambda_[1, 4] = 25.0, -30.0
    eps, c = torch.randn(samples, 7, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def decode(z, slope=True):
        value, back = -(z - c).square().sum(-1), -2 * (z - c)
        value[3] = -torch.inf
        return value, back if slope else None

    direct = DirectProposals(decode, eps.clone, beta=0.7)
    share = lambda log_w: torch.full_like(log_w, 1 / samples)  # noqa: E731
    weighed, got = direct(lambda_, None if samples == 1 else share)
    lambda_.requires_grad_()
    mean, _ = lambda_.chunk(2, -1)
    q = DiagonalGaussian(lambda_)
    z = mean + q.variance.sqrt() * eps
    log_q = torch.distributions.Normal(mean, q.variance.sqrt()).log_prob(z).sum(-1)
    log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
    log_w = -(z - c).square().sum(-1) + 0.7 * (log_prior - log_q)
    fine = torch.ones(samples, 7, dtype=torch.bool)
    fine[0, 3] = False
    (want,) = torch.autograd.grad((log_w * fine).sum() / samples, lambda_)
    assert torch.allclose(weighed.log_w[fine], log_w[fine], atol=1e-12) and weighed.log_w[0, 3] == -torch.inf
    assert torch.allclose(got, want, atol=1e-12)
    assert torch.equal(direct.weigh(lambda_.detach()).log_w, weighed.log_w)


@pytest.mark.parametrize("method", ["svi", "bsvi-ds", "bsvi-sir-pi"])
@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("samples", [1, 3])
def test_bounds_trajectories_and_gradients_are_those_of_autograd(method, kind, samples):
    x, found = images(kind), []
    for usual in (False, True):
        model = by_autograd(make(kind)) if usual else make(kind)
        objective = bsvi.objective(method, k=4, svi=bsvi.SVI(lr=0.1, max_grad_norm=1.0, samples=samples))
        torch.manual_seed(5)
        estimate = objective(model, x, beta=0.7)
        estimate.loss.backward()
        gradients = [p.grad for p in [*model.parameters(), *objective.parameters()]]
        found.append([estimate.bound, estimate.trajectory.lambda_, estimate.trajectory.log_w, *gradients])
    assert find_direct(make(kind), x, torch.zeros(12, 10).double(), 1, 1.0) is not None
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-10) for a, b in zip(*found, strict=True))


def test_evaluation_takes_the_same_steps_by_hand():
    x, ids = images("bernoulli"), torch.arange(12)
    assert KeyedModel(make(), 0, 0, ids).slopes(x) is not None
    one, two = (bsvi.evaluate(model, [x], k=6) for model in (make(), by_autograd(make())))
    assert one.columns["log_likelihood"] == pytest.approx(two.columns["log_likelihood"], rel=1e-10)


class OtherVAE(bsvi.VAE):
    def log_lik(self, x, z):
        return super().log_lik(x, z) / 2


class OtherDecoder(MLPDecoder):
    def params(self, x, z):
        return super().params(x, z) / 2


class OtherPixels(Bernoulli):
    def log_prob(self, x, params):
        return super().log_prob(x, params) / 2


class OtherGaussian(DiagonalGaussian):
    def rsample_and_log_prob(self, sample_shape=()):
        return self.loc.expand(*sample_shape, *self.loc.shape), self.loc.sum(-1).expand(*sample_shape, -1)


def changed_models():
    encoder, sizes = MLPEncoder(5, (4, 6), 16), (5, (4, 6), 16)
    yield "a VAE of another likelihood", OtherVAE(encoder, MLPDecoder(*sizes))
    yield "another decoder", bsvi.VAE(encoder, OtherDecoder(*sizes))
    yield "other pixels", bsvi.VAE(encoder, MLPDecoder(*sizes, likelihood=OtherPixels()))
    yield "another prior", bsvi.VAE(encoder, MLPDecoder(*sizes), prior=bsvi.model.DiagonalGaussian(torch.zeros(10)))
    shrunk = bsvi.VAE(encoder, MLPDecoder(*sizes), posterior=lambda lambda_: DiagonalGaussian(lambda_ / 2))
    yield "a Gaussian of another lambda", shrunk
    yield "another family", bsvi.VAE(encoder, MLPDecoder(*sizes), posterior=OtherGaussian)
    yield "a plain function", bsvi.VAE(encoder, lambda x, z: -z.square().sum(-1).double())
    hooked, normed, wider = MLPDecoder(*sizes), MLPDecoder(*sizes), MLPDecoder(*sizes)
    hooked.net[0].register_forward_hook(lambda *args: None)
    normed.net[0] = parametrizations.weight_norm(normed.net[0])
    wider.net.append(nn.Tanh())
    for name, decoder in (("a hook", hooked), ("a parametrised layer", normed), ("another layer", wider)):
        yield name, bsvi.VAE(encoder, decoder)
    yield "something replaced", by_autograd(make(dtype=torch.float32))


@pytest.mark.parametrize("name", [name for name, _ in changed_models()])
def test_a_model_that_was_changed_goes_the_usual_way(name):
    model, x = dict(changed_models())[name], images("bernoulli", dtype=torch.float32)
    assert find_direct(model, x, torch.zeros(12, 10), 1, 1.0) is None


def test_under_autocast_and_for_closed_form_steps_autograd_is_used(monkeypatch):
    model, x = make(dtype=torch.float32), images("bernoulli", dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert find_direct(model, x, torch.zeros(12, 10), 1, 1.0) is None
    monkeypatch.setattr(MLPDecoder, "slopes", lambda self, x: pytest.fail("not for the closed form"))
    bsvi.objective("bsvi-sir", k=2, svi=bsvi.SVI(closed_form_kl=True))(model, x)


def test_steps_by_hand_run_on_the_meta_device_where_they_are_counted():
    model, x = make(dtype=torch.float32).to("meta"), torch.empty(7, 1, 4, 6, device="meta")
    steps = [*bsvi.SVI(steps=2).walk(model, x, model.encode(x))]
    assert [step.weighed.log_w.shape for step in steps] == [(1, 7)] * 3 and steps[0].gradient.is_meta
