"""No part of a model that can learn is forgotten, and none learns what it should not: frozen and parameter-free decoders,
families with parameters of their own, draws of weight zero."""

import copy
import math

import pytest
import torch
import zuko
from torch import nn

from bsvi import METHODS, SVI, VAE, AllDraws, DiagonalGaussian, Objective, Training, objective, train
from tests.oracles import FLOAT, PPCA, BernoulliDecoder, Counted

x = torch.rand(7, 20, generator=torch.Generator().manual_seed(0)).round().to(FLOAT)
QUICK = SVI(lr=0.1)


def make(**options):
    torch.manual_seed(0)
    return VAE(nn.Linear(20, 8), BernoulliDecoder(), **options).to(FLOAT)


def run(model, name, k=3, **options):
    """One estimate with fixed noise and the gradients of all parameters by name."""
    method = objective(name, k=k, svi=QUICK, **options)
    torch.manual_seed(5)
    estimate = method(model, x)
    if estimate.loss.requires_grad:
        estimate.loss.backward()
    return estimate, {n: p.grad for n, p in (*model.named_parameters(), *method.named_parameters())}


def check_weights(model, estimate):
    """Every row of the buffer is the weight of its own z and lambda."""
    t = estimate.trajectory
    for i in range(len(t.log_w)):
        log_q = DiagonalGaussian(t.lambda_[i]).log_prob(t.z[i])
        expected = model.log_lik(x, t.z[i]) + model.log_prior(t.z[i]) - log_q
        torch.testing.assert_close(t.log_w[i], expected.detach(), rtol=0, atol=1e-9)


# --- a decoder without parameters to train ---


def frozen(model):
    model.decoder.requires_grad_(False)
    return model


def with_a_function(model):
    decoder = copy.deepcopy(model.decoder).requires_grad_(False)
    return VAE(model.encoder, lambda x, z: nn.functional.logsigmoid((2 * x - 1) * decoder.net(z)).sum(-1))


def check_a_decoder_without_parameters(name, change=frozen, recompute=None):
    options = {} if recompute is None else {"recompute": recompute}
    whole, expected = run(make(), name, **options)
    model = change(make())
    estimate, got = run(model, name, **options)
    check_weights(model, estimate)
    torch.testing.assert_close(estimate.trajectory.log_w, whole.trajectory.log_w, rtol=0, atol=1e-9)
    for key, gradient in got.items():
        if key.startswith("decoder"):
            assert gradient is None
        else:
            torch.testing.assert_close(gradient, expected[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("change", [frozen, with_a_function])
@pytest.mark.parametrize("name", METHODS)
def test_the_encoder_alone_can_be_trained_with_every_method(name, change, recompute):
    check_a_decoder_without_parameters(name, change, recompute)


def test_with_a_frozen_decoder_no_decoder_graph_is_kept_or_walked():
    model = frozen(make())
    calls = []
    model.decoder.net[0].register_full_backward_hook(lambda *_: calls.append(1))
    estimate, _ = run(model, "bsvi")
    before = len(calls)  # one walk down to z for each of the three steps
    assert before == 3 and estimate.trajectory.log_w.shape == (4, 7)


def test_only_the_decoder_can_be_trained_too():
    for name in METHODS:
        model = make()
        _, expected = run(model, name)
        model = make()
        model.encoder.requires_grad_(False)
        _, got = run(model, name)
        for key in got:
            if key.startswith("encoder"):
                assert got[key] is None
            else:
                torch.testing.assert_close(got[key], expected[key], rtol=1e-9, atol=1e-12)


# --- a family with parameters of its own ---


class Flow(nn.Module):
    """A normalising flow that is told lambda: q(z; lambda) with parameters of its own."""

    def __init__(self, latent=2, context=4, hidden=(16,), transforms=2):
        super().__init__()
        self.flow = zuko.flows.NSF(latent, context, transforms=transforms, hidden_features=hidden)

    def forward(self, lambda_):
        return self.flow(lambda_)


MODES = {
    "bsvi": {"kept": {"recompute": False}, "recomputed": {"recompute": True}, "over budget": {}},
    "bsvi-ds": {"kept": {"recompute": False}, "recomputed": {"recompute": True}},
    "bsvi-pi": {"kept": {"recompute": False}, "recomputed": {"recompute": True}},
    "iwae": {"kept": {"recompute": False}},
    **{name: {"as it is": {}} for name in ("vae", "svi", "bsvi-sir", "bsvi-sir-pi")},
}


def flow_model():
    torch.manual_seed(1)
    return VAE(nn.Linear(20, 4), BernoulliDecoder(latent=2), posterior=Flow()).to(FLOAT)


def check_family_gradient(name, options=None, mode=""):
    """The family's gradient is that of ln w_0 with the same noise, as phi's is; theta's is not among it."""
    model = flow_model()
    method = objective(name, k=3, svi=QUICK, **(options or {}))
    if mode == "over budget":
        method.theta = AllDraws(budget=1.0)
    torch.manual_seed(5)
    estimate = method(model, x)
    estimate.loss.backward()
    got = {n: p.grad for n, p in model.named_parameters() if not n.startswith("decoder")}
    assert all(g is not None and g.abs().sum() > 0 for n, g in got.items() if n.startswith("family")), got.keys()
    reference = flow_model()
    torch.manual_seed(5)
    q = reference.posterior(reference.encode(x))
    z = q.rsample(torch.Size((1 if name not in ("iwae",) else 4,)))
    if name == "bsvi-ds":
        z = q.rsample(torch.Size((1,)))  # the probe
    log_w = torch.stack([reference.log_lik(x, row) + reference.log_prior(row) for row in z]) - q.log_prob(z)
    (-(log_w.logsumexp(0) - math.log(len(z))).mean()).backward()
    for key, gradient in got.items():
        torch.testing.assert_close(gradient, dict(reference.named_parameters())[key].grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, modes in MODES.items() for mode in modes], ids=lambda v: v
)
def test_a_familys_own_parameters_follow_the_first_weight_as_phi_does(name, mode):
    check_family_gradient(name, MODES[name][mode], mode)


def test_theta_gets_the_same_gradient_whatever_the_family_learns():
    gradients = []
    for learns in (True, False):
        for options in ({"recompute": False}, {"recompute": True}):
            model = flow_model()
            model.family.requires_grad_(learns)
            _, got = run(model, "bsvi", **options)
            gradients.append({k: g for k, g in got.items() if k.startswith(("decoder", "encoder"))})
    for other in gradients[1:]:
        for key, gradient in gradients[0].items():
            torch.testing.assert_close(other[key], gradient, rtol=1e-7, atol=1e-10)


def test_a_flow_learns_the_exact_posterior_of_a_linear_gaussian_model():
    """PPCA with a correlated posterior, its parameters fixed: the flow closes the gap that a diagonal Gaussian leaves."""
    oracle = PPCA(latent=2, visible=3)
    with torch.no_grad():
        oracle.W.copy_(torch.tensor([[1.5, 1.4], [1.0, 1.2], [-1.0, -0.8]]))
    oracle.requires_grad_(False)
    torch.manual_seed(0)
    flow = zuko.flows.MAF(2, 1, transforms=2, hidden_features=(16,)).to(FLOAT)
    model = VAE(lambda x: torch.zeros(len(x), 1, dtype=FLOAT), oracle.log_lik, posterior=flow)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    method = objective("bsvi-sir", k=1, svi=SVI(lr=1e-6))
    for _ in range(250):
        estimate = method(model, oracle.batch(64))
        optimizer.zero_grad()
        estimate.loss.backward()
        optimizer.step()
    with torch.no_grad():
        log_w = objective("vae")(model, oracle.batch(4000)).trajectory.log_w
        oracle.start_mean_field()
        diagonal = objective("vae")(oracle, oracle.batch(4000)).trajectory.log_w
    exact = oracle.exact_log_p(oracle.x)
    gap, best_diagonal = (exact - log_w).mean(), (exact - diagonal).mean()
    assert best_diagonal > 0.3 and gap < 0.3 * best_diagonal  # 0.9 for the best diagonal one, below 0.1 for the flow
    z = flow(torch.zeros(1, dtype=FLOAT)).sample((20_000,)).squeeze(1)
    posterior = oracle.exact_posterior(oracle.x)
    assert (z.mean(0) - posterior.mean).abs().max() < 0.1
    assert (torch.cov(z.T) - posterior.covariance_matrix).abs().max() < 0.1


# --- draws of weight zero ---


class Narrow(nn.Module):
    """ln p(x|z) that is -inf where z leaves a region, as the logarithm of a probability that underflows: 0 / 0 in backward."""

    def __init__(self):
        super().__init__()
        self.inner = BernoulliDecoder().to(FLOAT)

    def forward(self, x, z):
        outside = torch.relu(z[:, 0] + 0.0 * self.inner.net[0].bias.sum() - 2.0)
        return self.inner(x, z) + torch.exp(-1e5 * outside).log()


def check_a_draw_of_weight_zero(name, recompute=None):
    """Gradients are finite, and those of the remaining rows: sum_i r_i grad ln w_i over the rows with weight."""
    options = {} if recompute is None else {"recompute": recompute}
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), Narrow()).to(FLOAT)
    with torch.no_grad():
        model.encoder.bias[0] += 1.5
    method = objective(name, k=9, svi=QUICK, **options)
    torch.manual_seed(3)
    estimate = method(model, x)
    zero = torch.isinf(estimate.trajectory.log_w)
    assert zero.any() and torch.isfinite(estimate.bound).all()
    estimate.loss.backward()
    for key, p in (*model.named_parameters(), *method.named_parameters()):
        assert p.grad is not None and torch.isfinite(p.grad).all(), key
    return model, estimate


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        *((name, None) for name in METHODS if name not in ("vae", "svi", "vae-stl", "sa-vae")),
        ("iwae", True),
        ("bsvi", True),
    ],
)
def test_a_draw_of_weight_zero_spoils_no_gradient(name, recompute):
    model, estimate = check_a_draw_of_weight_zero(name, recompute)
    if name not in ("bsvi", "bsvi-ds", "bsvi-pi"):
        return
    t = estimate.trajectory
    r = torch.softmax(t.log_w + estimate.log_pi[:, None], 0)
    got = [p.grad.clone() for p in model.decoder.parameters()]
    model.zero_grad()
    rows = [(i, b) for i in range(len(r)) for b in range(7) if r[i, b] > 0]
    z = torch.stack([t.z[i, b] for i, b in rows])
    log_lik = model.log_lik(x[[b for _, b in rows]], z)
    (-(log_lik * torch.stack([r[i, b] for i, b in rows])).sum() / 7).backward()
    for gradient, p in zip(got, model.decoder.parameters(), strict=True):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-9, atol=1e-12)


def test_iwae_follows_the_rows_with_weight():
    """phi's gradient with a row of weight zero is that of the same bound with this row left out by hand."""
    model, estimate = check_a_draw_of_weight_zero("iwae")
    got = model.encoder.weight.grad.clone()
    model.zero_grad()
    t = estimate.trajectory
    torch.manual_seed(3)
    q = model.posterior(model.encode(x))
    z, log_q = q.rsample_and_log_prob((10,))
    total = torch.zeros((), dtype=FLOAT)
    for b in range(7):
        alive = torch.isfinite(t.log_w[:, b])
        rows = z[alive, b]
        log_w = model.log_lik(x[b].expand(len(rows), -1), rows) + model.log_prior(rows) - log_q[alive, b]
        total = total + torch.logsumexp(log_w, 0)
    (-total / 7).backward()
    torch.testing.assert_close(got, model.encoder.weight.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["bsvi", "iwae", "bsvi-sir"])
def test_training_goes_on_over_draws_of_weight_zero(name):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), Narrow()).to(FLOAT)
    with torch.no_grad():
        model.encoder.bias[0] += 1.5
    result = train(model, objective(name, k=9, svi=QUICK), [x], settings=Training(steps=30, log_every=10))
    assert result.steps == 30 and all(torch.isfinite(p).all() for p in model.parameters())


def test_an_example_without_any_weight_spoils_no_other_under_any_method():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = BernoulliDecoder().to(FLOAT)

        def forward(self, x, z):
            alive = (x != 0.5).all(-1).to(z)
            return self.inner(x, z) + (alive + 0.0 * self.inner.net[0].bias.sum()).log()  # log(0): an infinite slope

    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), Dead()).to(FLOAT)
    some = torch.cat([torch.full((1, 20), 0.5, dtype=FLOAT), x])
    for name in METHODS:
        estimate = objective(name, k=3, svi=QUICK)(model, some)
        assert estimate.bound[0] == -math.inf and torch.isfinite(estimate.bound[1:]).all()
        model.zero_grad()
        estimate.loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.decoder.parameters()), name


# --- memory and counts ---


def test_the_decoders_weights_are_not_counted_as_memory_of_every_draw():
    """A decoder with many weights and few activations keeps its graphs: its weights are there once, whatever k is."""
    torch.manual_seed(0)
    decoder = Counted(BernoulliDecoder(hidden=4000))
    weights = sum(4 * p.numel() for p in decoder.parameters())
    model = VAE(nn.Linear(20, 8), decoder)
    images = x.float()[:1]
    method = Objective(SVI(steps=9), theta=AllDraws(budget=float(weights)))
    estimate = method(model, images)
    assert decoder.calls == estimate.decoder_calls == method.decoder_calls == 10
    tight = Objective(SVI(steps=9), theta=AllDraws(budget=4.0 * 4000))
    decoder.calls = 0
    estimate = tight(model, images)
    assert decoder.calls == estimate.decoder_calls == 20


@pytest.mark.parametrize("name", METHODS)
def test_an_estimate_says_how_often_the_decoder_ran(name):
    model = VAE(nn.Linear(20, 8), Counted(BernoulliDecoder()))
    estimate = objective(name, k=4)(model, x.float())
    assert model.decoder.rows == 7 * estimate.decoder_calls
