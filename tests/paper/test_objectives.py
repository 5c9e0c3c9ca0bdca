"""The objective as users meet it: values, gradients in a training loop, other families, own models, bad input."""

import math

import pytest
import torch
from torch import nn

import bsvi
from bsvi import METHODS, SVI, VAE, Amortized, DiagonalGaussian, Objective, Resampled, giwae, objective
from bsvi.checks.trial import check_model
from bsvi.objectives import check_input
from tests.oracles import FLOAT, PPCA, BernoulliDecoder

x = torch.rand(7, 20, generator=torch.Generator().manual_seed(0)).round()


def make(**options):
    torch.manual_seed(0)
    return VAE(nn.Linear(20, 8), BernoulliDecoder(), **options)


@pytest.mark.parametrize("name", METHODS)
def test_five_lines_train(name):
    model = make()
    method = objective(name, k=3, svi=SVI(lr=0.1))
    optimizer = torch.optim.Adam([*model.parameters(), *method.parameters()], lr=1e-2, amsgrad=True)
    first = None
    for _ in range(60):
        estimate = method(model, x)
        optimizer.zero_grad()
        estimate.loss.backward()
        optimizer.step()
        first = estimate.loss.item() if first is None else first
        assert estimate.loss.item() == -estimate.bound.mean().item()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in [*model.parameters(), *method.parameters()])
    assert estimate.loss.item() < first - 2


@pytest.mark.parametrize("name", METHODS)
def test_the_estimate_keeps_no_graph_but_the_losss(name):
    estimate = objective(name, k=3)(make(), x)
    values = [estimate.bound, estimate.log_pi, *vars(estimate.trajectory).values()]
    assert estimate.loss.requires_grad
    assert not any(v.requires_grad for v in values if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("name", METHODS)
def test_under_no_grad_the_bound_is_the_same_and_no_parameter_gets_a_gradient(name):
    model, method = make(), objective(name, k=3)
    torch.manual_seed(1)
    trained = method(model, x).bound
    torch.manual_seed(1)
    with torch.no_grad():
        estimate = method(model, x)
    assert torch.equal(trained, estimate.bound)
    assert not estimate.loss.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_beta_acts_on_weights_and_steps():
    model = make()
    for beta in (0.1, 1.0):
        torch.manual_seed(1)
        t = objective("bsvi", k=2)(model, x, beta=beta).trajectory
        q = DiagonalGaussian(t.lambda_)
        log_ratio = torch.distributions.Normal(0.0, 1.0).log_prob(t.z).sum(-1) - q.log_prob(t.z)
        torch.testing.assert_close(t.log_w.float(), t.log_lik.float() + beta * log_ratio, rtol=0, atol=1e-4)


def full_covariance(lambda_):
    """lambda = (mean, lower triangle with the log of its diagonal): 2 + 3 parameters for 2 latents."""
    L = torch.zeros(*lambda_.shape[:-1], 2, 2, dtype=lambda_.dtype)
    L[..., 1, 0] = lambda_[..., 3]
    L = L + torch.diag_embed(lambda_[..., [2, 4]].exp())
    return torch.distributions.MultivariateNormal(lambda_[..., :2], scale_tril=L)


def test_a_full_covariance_family_closes_the_gap_that_a_diagonal_one_leaves():
    """On PPCA with correlated posterior: after refinement the full family's ELBO is within noise of ln p(x)."""
    oracle = PPCA(latent=2, visible=3)
    with torch.no_grad():
        oracle.W.copy_(torch.tensor([[1.5, 1.4], [1.0, 1.2], [-1.0, -0.8]]))  # nearly parallel columns: correlated
    exact = oracle.exact_log_p(oracle.x)
    posterior = oracle.exact_posterior(oracle.x)
    start = torch.cat([posterior.mean, torch.zeros(3, dtype=FLOAT)])
    full = VAE(lambda x: start.expand(len(x), -1), oracle.log_lik, posterior=full_covariance)
    svi = SVI(steps=300, lr=0.03, momentum=0.5, samples=16, max_grad_norm=1.0)
    with torch.no_grad():
        refined = svi(full, oracle.batch(50))[0]
    gap_full = (exact - refined.log_w[-16:]).mean().item()
    oracle.start_mean_field()
    with torch.no_grad():
        gap_diagonal = (exact - Amortized(16)(oracle, oracle.batch(50))[0].log_w).mean().item()
    assert gap_diagonal > 0.2
    assert gap_full < 0.3 * gap_diagonal
    assert torch.isfinite(refined.kl).all()


@pytest.mark.parametrize(
    "posterior",
    [
        lambda l_: torch.distributions.Independent(torch.distributions.Laplace(l_[..., :4], l_[..., 4:].exp()), 1),
        lambda l_: torch.distributions.Independent(torch.distributions.LogNormal(l_[..., :4], l_[..., 4:].exp()), 1),
        lambda l_: torch.distributions.TransformedDistribution(
            torch.distributions.Independent(torch.distributions.Normal(l_[..., :4], l_[..., 4:].exp()), 1),
            [torch.distributions.TanhTransform(cache_size=1)],
        ),
    ],
    ids=["laplace", "log-normal", "tanh-transformed"],
)
def test_any_reparameterisable_torch_distribution_will_do(posterior):
    model = make(posterior=posterior)
    for name in METHODS:
        estimate = objective(name, k=2)(model, x)
        estimate.loss.backward()
        assert torch.isfinite(estimate.bound).all() and torch.isfinite(estimate.trajectory.kl).all()


def test_another_prior_enters_the_weights_and_learns():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.means = nn.Parameter(torch.randn(3, 4))

        def forward(self):
            parts = torch.distributions.Independent(torch.distributions.Normal(self.means, 1.0), 1)
            return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(3)), parts)

    for name, recompute in (("bsvi", False), ("bsvi", True), ("bsvi-sir", False), ("vae", False)):
        model = make(prior=Mixture())
        estimate = objective(name, k=2, recompute=recompute)(model, x)
        estimate.loss.backward()
        assert model.prior.means.grad.abs().sum() > 0
        t = estimate.trajectory
        log_ratio = model.prior().log_prob(t.z) - DiagonalGaussian(t.lambda_).log_prob(t.z)
        torch.testing.assert_close(t.log_w.float(), t.log_lik.float() + log_ratio, rtol=0, atol=1e-4)
    fixed = make(prior=torch.distributions.Independent(torch.distributions.Normal(torch.full((4,), 5.0), 1.0), 1))
    assert objective("vae")(fixed, x).bound.mean() < objective("vae")(make(), x).bound.mean() - 10


def test_the_closed_form_kl_agrees_with_torchs():
    q = DiagonalGaussian(torch.randn(5, 8))
    reference = torch.distributions.Independent(torch.distributions.Normal(q.mean, q.variance.sqrt()), 1)
    unit = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(4), torch.ones(4)), 1)
    torch.testing.assert_close(make().kl(q), torch.distributions.kl_divergence(reference, unit))
    torch.testing.assert_close(q.entropy(), reference.entropy())
    z = q.rsample((3,))
    torch.testing.assert_close(q.log_prob(z), reference.log_prob(z))


def test_a_model_of_ones_own_needs_no_base_class():
    class Mine:
        def encode(self, x):
            return torch.zeros(len(x), 4)

        def posterior(self, lambda_):
            return DiagonalGaussian(lambda_)

        def log_prior(self, z):
            return -0.5 * z.square().sum(-1)

        def log_lik(self, x, z):
            return -(x[:, :2] - z).square().sum(-1)

    assert isinstance(Mine(), bsvi.Model)
    with torch.no_grad():
        estimate = objective("bsvi", k=3)(Mine(), x)
    assert estimate.bound.shape == (7,)
    assert torch.equal(objective("bsvi", k=3, recompute=True)(Mine(), x).loss.isfinite(), torch.tensor(True))


class Spoiled(nn.Module):
    """A decoder whose answer is spoiled for chosen calls."""

    def __init__(self, value, at):
        super().__init__()
        self.inner, self.value, self.at, self.calls = BernoulliDecoder(), value, at, -1

    def forward(self, x, z):
        self.calls += 1
        log_lik = self.inner(x, z)
        return torch.where(torch.arange(len(x)) < 2, self.value, log_lik) if self.calls == self.at else log_lik


def check_a_weight_that_is_not_finite_counts_as_zero(value=math.nan):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), Spoiled(value, at=1))
    estimate = objective("bsvi-sir", k=3)(model, x)
    log_w = estimate.trajectory.log_w
    assert estimate.trajectory.nonfinite == 2
    assert (log_w[1, :2] == -math.inf).all() and torch.isfinite(log_w[1, 2:]).all()
    expected = (log_w.exp().sum(0) / 4).log()  # its share 1/4 stays: nothing is dropped or renormalised
    torch.testing.assert_close(estimate.bound, expected, rtol=0, atol=1e-9)
    estimate.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_counts_as_zero_with_its_own_pi(value):
    check_a_weight_that_is_not_finite_counts_as_zero(value)


def test_an_example_without_any_weight_says_so_and_spoils_no_other():
    model = VAE(nn.Linear(20, 8), lambda x, z: torch.where(torch.arange(len(x)) == 0, -math.inf, -z.square().sum(-1)))
    estimate = objective("bsvi-sir", k=2)(model, x)
    assert estimate.bound[0] == -math.inf and torch.isfinite(estimate.bound[1:]).all()
    estimate.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_resampled_draws_must_be_at_least_one():
    with pytest.raises(ValueError, match="at least 1 draw"):
        Resampled(0)


def raises(kind, pattern, call):
    with pytest.raises(kind, match=pattern) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and ";" in message  # one line: what, what was got; what to do


class Raw(VAE):
    """An encoder that returns a pair, past the shapes that the tests enforce on VAE itself."""

    def encode(self, x):
        return x[:, :4], x[:, 4:8]


def test_wrong_shapes_from_encoder_and_decoder_say_what_to_return():
    call = objective("bsvi", k=2)
    raises(ValueError, r"got \(7,\)", lambda: call(VAE(lambda x: x[:, 0], BernoulliDecoder()), x))
    raises(ValueError, r"batch = 7, got \(6, 8\)", lambda: call(VAE(lambda x: x[1:, :8], BernoulliDecoder()), x))
    raises(TypeError, r"got tuple", lambda: call(Raw(nn.Linear(20, 8), BernoulliDecoder()), x))
    raises(
        ValueError, r"even number of parameters, got 7", lambda: call(VAE(lambda x: x[:, :7], BernoulliDecoder()), x)
    )
    encoder = nn.Linear(20, 8)
    raises(ValueError, r"shape \(7,\), got \(7, 4\)", lambda: call(VAE(encoder, lambda x, z: z), x))
    raises(ValueError, r"shape \(7,\), got \(\)", lambda: call(VAE(encoder, lambda x, z: z.sum()), x))
    loose = VAE(encoder, BernoulliDecoder(8), posterior=lambda l_: torch.distributions.Normal(l_, 1.0))
    raises(ValueError, r"Independent", lambda: call(loose, x))
    fixed = VAE(encoder, BernoulliDecoder(), posterior=lambda l_: torch.distributions.Poisson(l_.exp()))
    raises(TypeError, r"cannot be reparameterised", lambda: call(fixed, x))


def test_settings_that_make_no_sense_are_refused():
    raises(ValueError, r"steps >= 1, got 0; for no refinement use Amortized", lambda: SVI(steps=0))
    raises(ValueError, r"samples >= 1", lambda: SVI(samples=0))
    raises(ValueError, r"momentum < 1, got 1.5", lambda: SVI(momentum=1.5))
    raises(ValueError, r"max_grad_norm > 0", lambda: SVI(max_grad_norm=0.0))
    raises(ValueError, r"lr > 0, got nan", lambda: SVI(lr=math.nan))
    raises(ValueError, r"draws >= 1, got 0", lambda: Amortized(0))
    raises(ValueError, r"unknown method 'bsvi_sir'; did you mean 'bsvi-sir'", lambda: objective("bsvi_sir"))
    raises(ValueError, r"k must be at least 1, got 0", lambda: objective("bsvi", k=0))
    raises(ValueError, r"goes with SVI", lambda: Objective(Amortized(5), theta=Resampled()))
    raises(ValueError, r"made for 3 weights, got 5", lambda: Objective(SVI(steps=4), bsvi.Learned(3))(make(), x))
    raises(
        ValueError,
        r"no KL is known",
        lambda: objective("bsvi", svi=SVI(closed_form_kl=True))(
            make(
                prior=torch.distributions.MixtureSameFamily(
                    torch.distributions.Categorical(torch.ones(2)),
                    torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2, 4), 1.0), 1),
                )
            ),
            x,
        ),
    )


def test_input_that_is_not_finite_is_refused_with_its_place():
    bad = x.clone()
    bad[3, 2] = math.nan
    bad[5, 0] = math.inf
    raises(ValueError, r"2 of 7 examples \(first at index 3\)", lambda: objective("bsvi")(make(), bad))
    raises(ValueError, r"beta must be finite", lambda: check_input(x, math.nan))
    raises(ValueError, r"at least one example, got \(0, 20\)", lambda: check_input(x[:0], 1.0))
    raises(TypeError, r"got ndarray", lambda: check_input(x.numpy(), 1.0))
    raises(
        TypeError,
        r"Linear lacks encode, posterior, log_prior, log_lik; use bsvi.VAE",
        lambda: check_model(nn.Linear(1, 1)),
    )
    with torch.inference_mode():
        raises(RuntimeError, r"use torch.no_grad", lambda: check_input(x, 1.0))


def test_batch_statistics_and_dropout_in_the_decoder_are_refused_in_training():
    class Wrapped(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer, self.inner = layer, BernoulliDecoder()

        def forward(self, x, z):
            return self.inner(x, self.layer(z))

    for layer, pattern in ((nn.BatchNorm1d(4), "batch statistics"), (nn.Dropout(0.1), "Dropout")):
        model = VAE(nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8)), Wrapped(layer))
        raises(ValueError, pattern, lambda model=model: objective("bsvi")(model, x))
        model.decoder.eval()
        objective("bsvi", k=2)(model, x)  # and the encoder's own BatchNorm may stay in train mode
    raises(
        ValueError,
        "batch statistics",
        lambda: check_model(VAE(nn.Linear(20, 8), Wrapped(nn.BatchNorm1d(4, track_running_stats=False)).eval())),
    )
    check_model(VAE(nn.Linear(20, 8), Wrapped(nn.LayerNorm(4))))


def test_a_bound_of_ones_own_can_be_resampled():
    """A Renyi-like power mean: r is its derivative, whatever the bound is."""

    def power(log_w, log_pi, alpha=0.5):
        return giwae(alpha * log_w, log_pi) / alpha

    model = make()
    estimate = Objective(SVI(steps=3), theta=Resampled(), bound=power)(model, x)
    estimate.loss.backward()
    assert estimate.loss.item() == -estimate.bound.mean().item()
    assert (estimate.bound <= giwae(estimate.trajectory.log_w, estimate.log_pi) + 1e-12).all()
