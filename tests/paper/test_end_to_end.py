"""End to end: the bound as one function of theta, phi and the refinement's own parameters. Deterministic: fixed noise."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bsvi
from bsvi import SVI, VAE, AllDraws, DiagonalGaussian, Last, Learned, Objective, Resampled, Uniform
from bsvi.beyond.end_to_end import EndToEnd
from bsvi.beyond.updates import RATES_LR, Network, Rates, group_parameters
from tests.oracles import FLOAT, PPCA, BernoulliDecoder

WALK = SVI(steps=3, lr=0.3, momentum=0.5, max_grad_norm=0.7)
VARIANTS = {
    "plain": replace(WALK, momentum=0.0, max_grad_norm=math.inf),
    "clipping and momentum": WALK,
    "double sampling": replace(WALK, double_sampling=True),
    "3 samples": replace(WALK, samples=3),
    "closed-form KL": replace(WALK, closed_form_kl=True),
}


def make(seed=0):
    torch.manual_seed(seed)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder()).double()
    return model, torch.rand(6, 20, dtype=FLOAT).round()


def parameters(model, objective):
    return [*model.parameters(), *objective.parameters()]


def loss_of(objective, model, x, seed=5, beta=0.8):
    torch.manual_seed(seed)
    return objective(model, x, beta).loss


def gradients(objective, model, x, **settings):
    for p in parameters(model, objective):
        p.grad = None
    loss_of(objective, model, x, **settings).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters(model, objective)]


def check_total_derivative(objective=None, svi=WALK, tolerance=1e-6):
    """The gradient along random directions of all parameters against central differences."""
    model, x = make()
    objective = Objective(EndToEnd(svi, Rates(svi, width=8))).double() if objective is None else objective
    found, h = gradients(objective, model, x), 1e-5
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        along = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in parameters(model, objective)]
        ends = []
        for sign in (1, -2, 1):
            with torch.no_grad():
                for p, d in zip(parameters(model, objective), along, strict=True):
                    p.add_(sign * h * d)
            if sign != 1 or not ends:
                ends.append(loss_of(objective, model, x).item())
        by_hand = (ends[0] - ends[1]) / (2 * h)
        by_autograd = sum((g * d).sum().item() for g, d in zip(found, along, strict=True))
        assert by_autograd == pytest.approx(by_hand, rel=tolerance)
    return found


@pytest.mark.parametrize("svi", VARIANTS.values(), ids=VARIANTS)
def test_the_gradient_is_the_total_derivative_of_the_bound(svi):
    check_total_derivative(svi=svi)


@pytest.mark.parametrize("pi", [Last(), Learned(4).double()], ids=["last", "learned"])
def test_the_total_derivative_holds_for_any_buffer_weight(pi):
    check_total_derivative(Objective(EndToEnd(WALK, Rates(WALK, learned=False)), pi))


@pytest.mark.parametrize("svi", VARIANTS.values(), ids=VARIANTS)
def test_steps_that_are_made_again_in_backward_give_the_same_gradient(svi):
    model, x = make()
    kept, again = (
        gradients(Objective(EndToEnd(svi, Rates(svi, width=8)), theta=AllDraws(budget)).double(), model, x)
        for budget in (math.inf, 0.0)
    )
    torch.testing.assert_close(kept, again, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("svi", VARIANTS.values(), ids=VARIANTS)
def test_differences_of_gradients_give_the_exact_products(svi):
    model, x = make()
    exact, differences = (
        gradients(Objective(EndToEnd(svi, Rates(svi, width=8), finite_difference=how)).double(), model, x)
        for how in (False, True)
    )
    torch.testing.assert_close(exact, differences, rtol=1e-6, atol=1e-8)
    assert loss_of(Objective(EndToEnd(svi, finite_difference=True)), model, x) == loss_of(
        Objective(EndToEnd(svi)), model, x
    )


@pytest.mark.parametrize("svi", VARIANTS.values(), ids=VARIANTS)
def test_with_the_rates_of_svi_the_draws_are_those_of_svi(svi):
    model, x = make()
    trajectories = []
    for refinement in (svi, EndToEnd(svi, Rates(svi, learned=False))):
        torch.manual_seed(3)
        trajectories.append(Objective(refinement)(model, x).trajectory)
    for name in ("lambda_", "z", "log_w"):
        got, want = (getattr(t, name) for t in trajectories)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def sa_vae_by_hand(model, x, eps, lr):
    """-ln w_2 of two steps without momentum or clipping, by the formulas of the linear-Gaussian model and its Hessian."""
    W, b, s2 = model.W, model.b, model.sigma**2
    lambda_ = model.phi.expand(len(x), -1)
    for i in range(3):
        mean, log_var = lambda_.chunk(2, -1)
        sd = (0.5 * log_var).exp()
        z = mean + sd * eps[i]
        residual = x - z @ W.T - b
        log_w = -0.5 * (residual.square() / s2 + math.log(2 * math.pi * s2)).sum(-1)
        log_w = log_w - 0.5 * z.square().sum(-1) + 0.5 * (eps[i].square() + log_var).sum(-1)
        slope = residual @ W / s2 - z
        lambda_ = lambda_ + lr * torch.cat([slope, 0.5 * slope * sd * eps[i] + 0.5], -1)  # written out: no create_graph
    return -log_w.mean()


def check_sa_vae():
    model = PPCA(latent=3, visible=5).start(torch.full((3,), 0.5, dtype=FLOAT), torch.tensor(0.3, dtype=FLOAT))
    x, svi = model.batch(16), SVI(steps=2, lr=0.05, momentum=0.0, max_grad_norm=math.inf)
    torch.manual_seed(5)
    loss = Objective(EndToEnd(svi, Rates(svi, learned=False)), Last())(model, x).loss
    got = torch.autograd.grad(loss, [model.W, model.b, model.phi])
    torch.manual_seed(5)
    by_hand = sa_vae_by_hand(model, x, [torch.randn(16, 3, dtype=FLOAT) for _ in range(3)], 0.05)
    torch.testing.assert_close(loss, by_hand, rtol=1e-12, atol=1e-12)
    want = torch.autograd.grad(by_hand, [model.W, model.b, model.phi])
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_two_steps_of_sa_vae_have_the_gradient_of_the_formulas():
    check_sa_vae()


def check_iterative(buffer_weight=None):
    """The gradient is that of a chain whose g_i are constants: first order, for theta, phi and the network."""
    model, x = make()
    network = Network(width=8, hidden=16).double()
    refinement = EndToEnd(replace(WALK, steps=2), network, second_order=False)
    found = gradients(Objective(refinement, buffer_weight), model, x, beta=1.0)
    torch.manual_seed(5)
    lambda_, log_w = model.encode(x), []
    for i in range(3):
        q = DiagonalGaussian(lambda_)
        z = q.rsample((1,))
        log_w.append(model.log_lik(x, z[0]) + model.log_prior(z[0]) - q.log_prob(z)[0])
        (g,) = torch.autograd.grad(log_w[-1].sum(), lambda_, retain_graph=True)
        lambda_, _ = network(i, lambda_, g.detach(), torch.zeros(0), q)
    pi = (Uniform() if buffer_weight is None else buffer_weight)(3)
    loss = -torch.logsumexp(torch.stack(log_w) + pi[:, None], 0).mean()
    want = torch.autograd.grad(loss, [*model.parameters(), *network.parameters()])
    torch.testing.assert_close(found, list(want), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("pi", [None, Last()], ids=["buffered", "as published"])
def test_iterative_inference_differentiates_nothing_twice(pi):
    check_iterative(pi)


def test_a_network_learns_its_width_from_the_first_batch():
    model, x = make()
    objective = Objective(EndToEnd(WALK, Network(hidden=8), second_order=False)).double()
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
    before = None
    for _ in range(2):
        optimizer.zero_grad()
        objective(model, x).loss.backward()
        optimizer.step()
        after = objective.refinement.update.read.detach().clone()
        assert before is None or not torch.equal(before, after)
        before = after
    other = Objective(EndToEnd(WALK, Network(hidden=8), second_order=False)).double()
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other.refinement.update.read, after)


def test_theta_may_learn_from_a_resampled_draw_while_phi_and_rates_go_end_to_end():
    model, x = make()
    whole = Objective(EndToEnd(WALK, Rates(WALK, width=8))).double()
    mixed = Objective(whole.refinement, theta=Resampled())
    n = len(list(model.decoder.parameters()))
    encoder, decoder = slice(0, 2), slice(2, 2 + n)
    one, other = gradients(whole, model, x), gradients(mixed, model, x)
    torch.testing.assert_close(one[encoder] + one[2 + n :], other[encoder] + other[2 + n :], rtol=1e-12, atol=1e-12)
    assert not any(torch.allclose(a, b) for a, b in zip(one[decoder], other[decoder], strict=True))
    torch.manual_seed(5)
    estimate = mixed(model, x, 0.8)
    draws = estimate.trajectory.z
    torch.manual_seed(5)
    mixed(model, x, 0.8)
    assert draws.shape == (4, 6, 4) and all(g.abs().sum() > 0 for g in other[decoder])


def test_phi_may_follow_the_first_weight_while_theta_goes_end_to_end():
    model, x = make()
    whole, cut = (
        gradients(Objective(EndToEnd(WALK, Rates(WALK, learned=False), encoder=e)), model, x) for e in (True, False)
    )
    as_svi = gradients(Objective(WALK), model, x)
    torch.testing.assert_close(cut[:2], as_svi[:2], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(cut[2:], whole[2:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(whole[0], cut[0])


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def test_a_decoder_that_cannot_be_differentiated_twice_is_told_of_finite_differences():
    model = VAE(nn.Linear(20, 8), lambda x, z: -Once.apply(z - x[:, :4]).sum(-1)).double()
    x = torch.rand(6, 20, dtype=FLOAT)
    with pytest.raises(ValueError, match=r"cannot be differentiated twice .*finite_difference=True"):
        Objective(EndToEnd(WALK))(model, x)
    Objective(EndToEnd(WALK, finite_difference=True))(model, x).loss.backward()
    assert model.encoder.weight.grad.abs().sum() > 0


def test_a_gradient_of_zero_and_a_weight_of_zero_leave_finite_gradients():
    class Edge(BernoulliDecoder):
        def forward(self, x, z):
            return super().forward(x, z) + (1.5 - z[:, 0]).clamp(min=0).sqrt().log()  # slope 0 * inf at weight zero

    torch.manual_seed(0)
    model, x = VAE(nn.Linear(20, 8), Edge()).double(), torch.rand(40, 20, dtype=FLOAT).round()
    for budget in (math.inf, 0.0):
        objective = Objective(EndToEnd(WALK), theta=AllDraws(budget)).double()
        torch.manual_seed(1)
        estimate = objective(model, x)
        estimate.loss.backward()
        assert 0 < estimate.trajectory.nonfinite < estimate.trajectory.log_w.numel()
        assert all(torch.isfinite(p.grad).all() for p in parameters(model, objective))
        assert model.decoder.net[0].weight.grad.abs().sum() > 0
    flat = VAE(nn.Linear(20, 8), lambda x, z: torch.zeros(len(x), dtype=FLOAT)).double()
    with torch.no_grad():
        flat.encoder.weight.zero_()
        flat.encoder.bias.zero_()  # q is the prior: g of ln w is zero exactly
    Objective(EndToEnd(WALK))(flat, x).loss.backward()
    assert torch.isfinite(flat.encoder.weight.grad).all()


def test_compiled_decoders_run_as_written_where_they_are_differentiated_twice():
    model, x = make()
    want = gradients(Objective(EndToEnd(WALK)).double(), model, x)
    model.decoder.forward = torch.compile(model.decoder.forward, backend="aot_eager")
    found = gradients(Objective(EndToEnd(WALK)).double(), model, x)
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)


def test_learned_rates_have_a_rate_of_their_own_in_the_optimiser():
    model, _ = make()
    learned, fixed = (bsvi.objective(name, k=3) for name in ("bsvi-e2e", "sa-vae"))
    groups = group_parameters(model, learned, lr=1e-3)
    assert [group["lr"] for group in groups] == [1e-3, RATES_LR]
    assert groups[1]["params"] == [learned.refinement.update.log_rates]
    assert [group["lr"] for group in group_parameters(model, fixed, lr=1e-3)] == [1e-3]
    every = [p for group in groups for p in group["params"]]
    assert {id(p) for p in every} == {id(p) for p in (*model.parameters(), *learned.parameters())}
