"""Whatever ``torch.autocast`` says, lambda, the draws and every sum that forms a weight are float32 or wider."""

import math

import pytest
import torch
from torch import nn

import bsvi
from bsvi import METHODS, SVI, VAE, Amortized, DiagonalGaussian, objective
from bsvi.nets import MLPDecoder
from tests.oracles import BernoulliDecoder

LOWER = torch.bfloat16


class Gaussian(nn.Module):
    """z ~ N(0, I), x ~ N(z, I), with the exact posterior N(x / 2, I / 2) as encoder; both are networks, so that autocast
    acts on them."""

    def __init__(self, size):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(size, 2 * size), nn.Linear(size, size)
        with torch.no_grad():
            self.encoder.weight.copy_(torch.cat([0.5 * torch.eye(size), torch.zeros(size, size)]))
            self.encoder.bias.copy_(torch.cat([torch.zeros(size), torch.full((size,), -math.log(2.0))]))
            self.decoder.weight.copy_(torch.eye(size))
            self.decoder.bias.zero_()

    def encode(self, x):
        return self.encoder(x)

    def posterior(self, lambda_):
        return DiagonalGaussian(lambda_)

    def log_prior(self, z):
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)

    def log_lik(self, x, z):
        return -0.5 * ((x - self.decoder(z)).square() + math.log(2 * math.pi)).sum(-1)

    def exact_log_p(self, x):
        return torch.distributions.Normal(0.0, math.sqrt(2.0)).log_prob(x.double()).sum(-1)


def check_no_more_than_ln_p(size=256, draws=200, batch=60):
    """IWAE-200 with the exact encoder: its mean is at most ln p(x), 5.2 standard errors and 0.01 for the rounded decoder."""
    torch.manual_seed(0)
    model = Gaussian(size)
    x = math.sqrt(2.0) * torch.randn(batch, size)
    with torch.no_grad(), torch.autocast("cpu", LOWER):
        bound = bsvi.Objective(Amortized(draws))(model, x).bound
    over = bound - model.exact_log_p(x)
    assert over.mean() <= 5.2 * over.std() / math.sqrt(batch) + 0.01, over.mean().item()
    return over


@pytest.mark.parametrize("size", [256, 1024])
def test_reduced_precision_does_not_report_more_than_ln_p(size):
    over = check_no_more_than_ln_p(size, 200 if size == 256 else 50, 60 if size == 256 else 20)
    assert over.mean() > -0.5  # and it is close to it: the encoder is exact but for its rounded weights


@pytest.mark.parametrize("name", METHODS)
def test_lambda_draws_and_weights_are_never_reduced(name):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder())
    x = torch.rand(7, 20).round()
    seen = []
    model.decoder.net[0].register_forward_hook(lambda module, args, out: seen.append((args[0].dtype, out.dtype)))
    with torch.autocast("cpu", LOWER):
        estimate = objective(name, k=3)(model, x)
        t = estimate.trajectory
        for i in range(len(t.log_w)):  # each weight again, with the same decoder
            log_ratio = model.log_prior(t.z[i]) - DiagonalGaussian(t.lambda_[i]).log_prob(t.z[i])
            with torch.no_grad():
                expected = model.log_lik(x, t.z[i]).double() + log_ratio
            torch.testing.assert_close(t.log_w[i], expected, rtol=0, atol=1e-4)
    estimate.loss.backward()
    assert t.lambda_.dtype == t.z.dtype == torch.float32 and t.log_w.dtype == t.log_lik.dtype == torch.float64
    assert all(dtypes == (torch.float32, LOWER) for dtypes in seen) and seen  # the network itself is reduced
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.norm() > 0 for p in model.parameters())


def test_with_a_small_rate_every_coordinate_of_lambda_moves():
    torch.manual_seed(0)
    model, x = Gaussian(16), torch.randn(5, 16) * 3
    with torch.autocast("cpu", LOWER):
        t = objective("bsvi", k=4, svi=SVI(lr=1e-4))(model, x).trajectory
    assert (t.lambda_[-1] != t.lambda_[0]).all()


def test_recomputed_and_kept_gradients_agree_under_autocast():
    """Also for a model that lists no parameters: autocast's cache of reduced parameters must not lose their gradient."""

    class Plain:
        def __init__(self, model):
            self.encode, self.posterior, self.log_prior, self.log_lik = (
                getattr(model, name) for name in ("encode", "posterior", "log_prior", "log_lik")
            )

    x = torch.rand(7, 20).round()
    gradients = []
    for wrap in (lambda model: model, Plain):
        for recompute in (False, True):
            torch.manual_seed(0)
            model = VAE(nn.Linear(20, 8), BernoulliDecoder())
            torch.manual_seed(1)
            with torch.autocast("cpu", LOWER):
                estimate = objective("bsvi-ds", k=3, recompute=recompute)(wrap(model), x)
            estimate.loss.backward()
            gradients.append([p.grad for p in model.parameters()])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.02)


def test_an_objective_trains_under_autocast_with_a_grad_scaler():
    """As docs/training.md shows it; the scaler is switched on by force, as its own check is for CUDA."""
    torch.manual_seed(0)
    model, x = VAE(nn.Linear(20, 8), BernoulliDecoder()), torch.rand(50, 20).round()
    for name in ("bsvi", "bsvi-sir", "iwae"):
        method = objective(name, k=3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu")
        losses = []
        for _ in range(40):
            with torch.autocast("cpu", LOWER):
                estimate = method(model, x)
            optimizer.zero_grad()
            scaler.scale(estimate.loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            losses.append(estimate.loss.item())
        assert losses[-1] < losses[0]


def test_the_packages_own_likelihoods_stay_normalised_under_autocast():
    torch.manual_seed(0)
    decoder = MLPDecoder(latent=2, image=(1, 1))
    z = torch.randn(5, 2) * 3
    with torch.no_grad(), torch.autocast("cpu", LOWER):
        one, zero = (decoder(torch.full((5, 1, 1, 1), value), z) for value in (1.0, 0.0))
    torch.testing.assert_close(one.exp() + zero.exp(), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-6)


def test_sums_that_a_network_returns_in_reduced_precision_are_refused():
    model = VAE(nn.Linear(20, 8), lambda x, z: -z.bfloat16().square().sum(-1))
    with pytest.raises(TypeError, match=r"ln p\(x\|z\) in torch.bfloat16.*; sum in float32"):
        objective("bsvi", k=2)(model, torch.rand(7, 20))
    low = VAE(nn.Linear(20, 8), BernoulliDecoder()).bfloat16()
    with pytest.raises(TypeError, match=r"encoder returned torch.bfloat16.*; keep the model in float32"):
        objective("vae")(low, torch.rand(7, 20).bfloat16())


# --- nothing is cached that can be wrong ---


def test_log_prob_of_ones_own_draw_has_the_gradient_and_the_value_of_any_other():
    lambda_ = torch.randn(5, 8, requires_grad=True)
    q = DiagonalGaussian(lambda_)
    for z in (q.sample(), q.rsample().detach()):
        (own,) = torch.autograd.grad(q.log_prob(z).sum(), lambda_, retain_graph=True)
        (other,) = torch.autograd.grad(q.log_prob(z.clone()).sum(), lambda_, retain_graph=True)
        torch.testing.assert_close(own, other)
    with torch.no_grad():
        z = q.rsample()
        z.add_(1.0)
        torch.testing.assert_close(q.log_prob(z), q.log_prob(z.clone()))


def test_drawing_with_its_log_prob_is_drawing_and_then_asking():
    lambda_ = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    q = DiagonalGaussian(lambda_)
    torch.manual_seed(1)
    z, log_q = q.rsample_and_log_prob((3,))
    torch.manual_seed(1)
    again = q.rsample((3,))
    assert torch.equal(z, again)
    torch.testing.assert_close(log_q, q.log_prob(again))
    (together,) = torch.autograd.grad(z.sin().sum() + log_q.sum(), lambda_, retain_graph=True)
    (apart,) = torch.autograd.grad(again.sin().sum() + q.log_prob(again).sum(), lambda_)
    torch.testing.assert_close(together, apart)


def test_a_subclass_that_changes_the_density_is_asked_for_it():
    class Wide(DiagonalGaussian):
        def log_prob(self, value):
            return super().log_prob(value) - 100.0

    model = VAE(nn.Linear(20, 8), BernoulliDecoder())
    x = torch.rand(7, 20).round()
    torch.manual_seed(1)
    before = objective("bsvi", k=2)(model, x).bound
    model.family = Wide
    torch.manual_seed(1)
    torch.testing.assert_close(objective("bsvi", k=2)(model, x).bound, before + 100.0, rtol=0, atol=1e-3)


# --- a name means one number ---


def test_the_amortized_elbo_is_an_elbo_however_many_samples_the_steps_take():
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder())
    x = torch.rand(30, 20).round()
    many = bsvi.evaluate(model, x, k=2, iwae=(400,)).amortized_elbo
    few = bsvi.evaluate(model, x, k=2, iwae=(), svi=SVI(samples=50)).amortized_elbo
    bound = bsvi.evaluate(model, x, k=2, iwae=(50,)).iwae[50]
    difference = (few - many).per_example
    assert abs(difference.mean()) < 6 * difference.std() / math.sqrt(30)  # of like draws: false alarm below 1e-8
    assert bound.mean - many.mean > 20 * difference.std() / math.sqrt(30)  # IWAE-50, which it was, is far above
