"""T3: ln w_i is what its z_i and lambda_i say. T3b: lambda_1 and lambda_2 by hand from the same noise. Deterministic."""

import math

import pytest
import torch

from bsvi import SVI, EndToEnd, Network
from tests.oracles import FLOAT, PPCA


def by_hand(model, x, lambda_, eps):
    """z, ln w and its gradient at lambda, from the formulas of the linear-Gaussian model."""
    W, b, sigma = model.W.detach(), model.b.detach(), model.sigma
    mean, log_var = lambda_.chunk(2, dim=-1)
    z = mean + (0.5 * log_var).exp() * eps
    residual = x - z @ W.T - b
    log_w = -0.5 * (residual.square() / sigma**2 + math.log(2 * math.pi * sigma**2)).sum(-1)
    # ln p(z) - ln q(z); the 2 pi cancel
    log_w = log_w - 0.5 * z.square().sum(-1) + 0.5 * (eps.square() + log_var).sum(-1)
    dz = residual @ W / sigma**2 - z
    return z, log_w, dz, dz * 0.5 * (0.5 * log_var).exp() * eps + 0.5


def clip(g, largest):
    return g * (largest / g.norm(dim=-1, keepdim=True)).clamp(max=1.0)


def check_weights_and_steps(svi=None, n=64):
    svi = SVI(steps=4, lr=0.2, momentum=0.5, max_grad_norm=1.0) if svi is None else svi
    model = PPCA(latent=3, visible=5).start(torch.full((3,), 0.5, dtype=FLOAT), torch.tensor(0.3, dtype=FLOAT))
    x = model.batch(n)
    torch.manual_seed(5)
    trajectory, _ = svi(model, x)
    torch.manual_seed(5)
    lambda_, v_mean, v_log_var = model.phi.detach().expand(n, -1), 0.0, 0.0
    clipped = 0
    for i in range(svi.steps + 1):
        torch.testing.assert_close(trajectory.lambda_[i], lambda_, rtol=0, atol=1e-10)
        z, log_w, g_mean, g_log_var = by_hand(model, x, lambda_, torch.randn(n, 3, dtype=FLOAT))
        torch.testing.assert_close(trajectory.z[i], z, rtol=0, atol=1e-10)
        torch.testing.assert_close(trajectory.log_w[i], log_w, rtol=0, atol=1e-9)
        clipped += int((g_mean.norm(dim=-1) > svi.max_grad_norm).sum())
        v_mean = svi.momentum * v_mean + clip(g_mean, svi.max_grad_norm)
        v_log_var = svi.momentum * v_log_var + clip(g_log_var, svi.max_grad_norm)
        lambda_ = lambda_ + svi.lr * torch.cat([v_mean, v_log_var], dim=-1)
    return clipped


def test_weights_and_steps_agree_with_the_formulas():
    assert check_weights_and_steps() > 50  # clipping was at work


def test_the_default_step_agrees_too():
    check_weights_and_steps(SVI(steps=3))


@pytest.mark.parametrize("double_sampling", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_log_w_is_what_z_and_lambda_say(double_sampling, samples):
    svi = SVI(steps=4, samples=samples, double_sampling=double_sampling)
    check_log_w(svi)
    check_log_w(EndToEnd(svi))
    check_log_w(EndToEnd(svi, Network(width=6).double(), second_order=False))


def check_log_w(refinement):
    model = PPCA(latent=3, visible=5).start_wide()
    trajectory, _ = refinement(model, model.batch(50), beta=0.7)
    mean, log_var = trajectory.lambda_.chunk(2, dim=-1)
    log_q = torch.distributions.Normal(mean, (0.5 * log_var).exp()).log_prob(trajectory.z).sum(-1)
    log_p = torch.distributions.Normal(0.0, 1.0).log_prob(trajectory.z).sum(-1)
    located = trajectory.z @ model.W.detach().T + model.b.detach()
    log_lik = torch.distributions.Normal(located, model.sigma).log_prob(model.x).sum(-1)
    torch.testing.assert_close(trajectory.log_lik, log_lik, rtol=0, atol=1e-9)
    torch.testing.assert_close(trajectory.log_w, log_lik + 0.7 * (log_p - log_q), rtol=0, atol=1e-9)


def test_the_batch_form_is_the_mean_loss_clipped_over_the_whole_batch():
    svi = SVI(steps=1, lr=1.0, momentum=0.0, max_grad_norm=1.0, clip="batch")
    model = PPCA().start(torch.full((2,), 0.5, dtype=FLOAT), torch.tensor(0.3, dtype=FLOAT))
    x = model.batch(40)
    torch.manual_seed(5)
    trajectory, _ = svi(model, x)
    torch.manual_seed(5)
    _, _, g_mean, g_log_var = by_hand(model, x, model.phi.detach().expand(40, -1), torch.randn(40, 2, dtype=FLOAT))
    step = torch.cat([g / 40 * min(1.0, 1.0 / (g / 40).norm().item()) for g in (g_mean, g_log_var)], dim=-1)
    torch.testing.assert_close(trajectory.lambda_[1] - trajectory.lambda_[0], step, rtol=0, atol=1e-10)
