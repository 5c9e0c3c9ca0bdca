"""T7: Lemma 1, the bound's gradient is sum_i r_i grad ln p(x, z_i). T7b: phi follows ln w_0 alone, theta gets none of that.

Deterministic: 1e-12 relative, against formulas of the linear-Gaussian model and against autograd from scratch.
"""

import pytest
import torch

from bsvi import METHODS, SVI, AllDraws, LastDraw, Learned, Objective, Recomputed, Uniform, objective, responsibilities
from bsvi.buffer_weights import Last
from tests.oracles import FLOAT, PPCA

QUICK = SVI(steps=4, lr=0.2, max_grad_norm=1.0)


def make():
    torch.manual_seed(2)
    return PPCA(latent=3, visible=5).start(torch.full((3,), 0.5, dtype=FLOAT), torch.tensor(0.3, dtype=FLOAT))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def lemma_gradient(model, x, z, r):
    """-sum_i r_i grad ln p(x, z_i) averaged over the batch, with z fixed, from the formulas."""
    residual = (x - z @ model.W.detach().T - model.b.detach()) / model.sigma**2
    return -torch.einsum("ib,ibv,ibl->vl", r, residual, z) / len(x), -torch.einsum("ib,ibv->v", r, residual) / len(x)


def check_theta_gradient(theta, buffer_weight=None, svi=QUICK, beta=1.0):
    model = make()
    x = model.batch(11)
    estimate = Objective(svi, buffer_weight, theta)(model, x, beta=beta)
    estimate.loss.backward()
    r = responsibilities(estimate.trajectory.log_w, estimate.log_pi)
    W, b = lemma_gradient(model, x, estimate.trajectory.z, r)
    close(model.W.grad, W)
    close(model.b.grad, b)


@pytest.mark.parametrize("theta", [AllDraws(), Recomputed(), Recomputed(chunk=2), Recomputed(chunk=100)], ids=repr)
@pytest.mark.parametrize("svi", [QUICK, SVI(steps=3, samples=2, double_sampling=True, lr=0.2)], ids=["alg1", "m=2, DS"])
def test_the_bounds_gradient_is_the_responsibility_weighted_one(theta, svi):
    check_theta_gradient(theta, svi=svi, beta=0.8)


def test_svi_learns_from_its_last_draw():
    check_theta_gradient(LastDraw(), Last())


def check_phi_gradient(name):
    """phi's gradient is that of -ln w(z_0; lambda_0) with the same noise, neither clipped nor with momentum."""
    model = make()
    x = model.batch(11)
    torch.manual_seed(9)
    estimate = objective(name, k=4, svi=QUICK)(model, x)
    estimate.loss.backward()
    torch.manual_seed(9)
    eps = torch.randn(11, 3, dtype=FLOAT)
    if METHODS[name].draws(4, QUICK).double_sampling:
        eps = torch.randn(11, 3, dtype=FLOAT)  # the probe is drawn after z_0, and has the same law
    lambda_0 = model.phi.detach().clone().requires_grad_()
    mean, log_var = lambda_0.expand(11, -1).chunk(2, dim=-1)
    z = mean + (0.5 * log_var).exp() * eps
    log_q = torch.distributions.Normal(mean, (0.5 * log_var).exp()).log_prob(z).sum(-1)
    (-(model.log_lik(x, z) + model.log_prior(z) - log_q).mean()).backward(inputs=[lambda_0])
    close(model.phi.grad, lambda_0.grad)
    assert lambda_0.grad.norm() > 0.1


@pytest.mark.parametrize("name", ["svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi"])
def test_phi_follows_the_weight_of_its_own_draw_and_nothing_else(name):
    check_phi_gradient(name)


@pytest.mark.parametrize(("name", "recompute"), [("vae", False), ("iwae", False), ("iwae", True)])
def test_the_amortized_methods_follow_their_bound(name, recompute):
    model = make()
    x = model.batch(11)
    torch.manual_seed(9)
    objective(name, k=3, recompute=recompute)(model, x).loss.backward()
    draws = 1 if name == "vae" else 4
    copy = make()
    torch.manual_seed(9)
    mean, log_var = copy.phi.expand(11, -1).chunk(2, dim=-1)
    q = torch.distributions.Normal(mean, (0.5 * log_var).exp())
    calls = [1] * draws if recompute else [draws]  # one call for all draws, or one each
    eps = torch.cat([torch.randn(rows, 11, 3, dtype=FLOAT) for rows in calls])
    z = mean + (0.5 * log_var).exp() * eps
    log_lik = torch.distributions.Normal(z @ copy.W.T + copy.b, copy.sigma).log_prob(x).sum(-1)
    log_w = log_lik + torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1) - q.log_prob(z).sum(-1)
    (-(log_w.exp().mean(0).log()).mean()).backward()
    for name_, parameter in model.named_parameters():
        close(parameter.grad, dict(copy.named_parameters())[name_].grad)


def test_pi_gets_the_whole_bounds_gradient_with_and_without_resampling():
    gradients = []
    for name in ("bsvi-pi", "bsvi-sir-pi"):
        model = make()
        method = objective(name, k=4, svi=QUICK)
        torch.manual_seed(4)
        estimate = method(model, model.batch(11))
        estimate.loss.backward()
        r = responsibilities(estimate.trajectory.log_w, estimate.log_pi)
        (pi,) = method.parameters()
        assert pi.grad is not None
        torch.testing.assert_close(pi.grad.double(), (estimate.log_pi.exp()[:, None] - r).mean(1), rtol=1e-5, atol=1e-7)
        gradients.append(pi.grad)
    assert torch.equal(*gradients)


def test_kept_and_recomputed_graphs_give_the_same_gradients_everywhere():
    results = []
    for recompute in (False, True, None):
        model = make()
        method = objective("bsvi-pi", k=4, svi=QUICK, recompute=recompute)
        if recompute is None:
            method.theta = AllDraws(budget=1e3)  # less than the graphs take: recomputed by itself
        torch.manual_seed(4)
        method(model, model.batch(11)).loss.backward()
        results.append([p.grad for p in (*model.parameters(), *method.parameters())])
    for kept, recomputed, automatic in zip(*results, strict=True):
        close(kept, recomputed)
        close(kept, automatic)


def test_uniform_is_the_default_buffer_weight():
    assert isinstance(Objective(QUICK).buffer_weight, Uniform)
    assert isinstance(objective("bsvi-pi").buffer_weight, Learned)
