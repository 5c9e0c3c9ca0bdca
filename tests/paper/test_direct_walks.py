"""End-to-end walks by functions of tensors: bound and all derivatives are those of double backward."""

import subprocess
import sys

import pytest
import torch

import bsvi
from bsvi.beyond import directly, end_to_end
from bsvi.graphs import GraphSize
from bsvi.nets import Bernoulli, DiscretisedLogistic, MLPDecoder, MLPEncoder
from bsvi.nets.likelihoods import carry_slope
from bsvi.system import runtime

LIKELIHOODS = {"bernoulli": Bernoulli, "logistic": DiscretisedLogistic}


def make(kind="bernoulli"):
    torch.manual_seed(3)
    decoder = MLPDecoder(5, (4, 8), 16, likelihood=LIKELIHOODS[kind]())
    return bsvi.VAE(MLPEncoder(5, (4, 8), 16), decoder).double()


def images(kind):
    grey = torch.rand(12, 1, 4, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    levels = (grey * 1.6 - 0.3).clamp(0, 1).mul(255).round() / 255  # black and white too
    return levels.round() if kind == "bernoulli" else levels


def learn(model, x, method="bsvi-e2e", beta=0.7, **how):
    """Bound and gradients of one update by fixed noise."""
    objective = bsvi.objective(method, k=3, svi=bsvi.SVI(lr=0.3, max_grad_norm=1.0), width=10, **how).double()
    torch.manual_seed(5)
    estimate = objective(model, x, beta=beta)
    estimate.loss.backward()
    after = torch.rand(1)  # the random state is the same afterwards, too
    found = [p.grad for p in [*model.parameters(), *objective.parameters()]]
    return [after, estimate.bound, estimate.trajectory.lambda_, estimate.trajectory.log_w, *found]


@pytest.mark.parametrize("beta", [1.0, 0.7])
@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("method", ["bsvi-e2e", "sa-vae"])
def test_all_derivatives_are_those_of_double_backward(method, kind, beta, monkeypatch):
    got = learn(make(kind), images(kind), method, beta)
    assert all(g is not None and g.abs().max() > 0 for g in got)
    monkeypatch.setattr(end_to_end, "walk_directly", lambda *ignored, **how: None)
    want = learn(make(kind), images(kind), method, beta)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(got, want, strict=True))


def test_double_backward_is_not_asked_for_where_it_is_not_needed(monkeypatch):
    monkeypatch.setattr(end_to_end.EndToEnd, "take", lambda *args, **kwargs: pytest.fail("autograd was asked"))
    learn(make(), images("bernoulli"))


def test_slopes_of_somebody_s_own_that_keep_no_graph_are_not_learned_through(monkeypatch):
    def learn_with(slopes):
        model = make()
        if slopes is not None:
            monkeypatch.setattr(MLPDecoder, "slopes", slopes)
        return learn(model, images("bernoulli"))

    want, real = learn_with(None), MLPDecoder.slopes

    def detached(decoder, x):
        known = real(decoder, x)

        def decode(z, slope=True):
            with torch.no_grad():
                return known(z, slope)

        return decode

    got = learn_with(detached)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(got, want, strict=True))


def test_theta_that_learns_from_a_resampled_draw_learns_nothing_from_the_walk(monkeypatch):
    def gradients():
        model, x = make(), images("bernoulli")
        walk = end_to_end.EndToEnd(bsvi.SVI(steps=3, lr=0.3, max_grad_norm=1.0)).double()
        torch.manual_seed(5)
        bsvi.Objective(walk, theta=bsvi.Resampled())(model, x).loss.backward()
        return [p.grad for p in [*model.parameters(), *walk.parameters()]]

    got = gradients()
    monkeypatch.setattr(end_to_end, "walk_directly", lambda *ignored, **how: None)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(got, gradients(), strict=True))


def test_a_draw_without_weight_leaves_the_walk_to_autograd_by_the_same_noise(monkeypatch):
    def broken(model):
        far = torch.zeros(12, 10, dtype=torch.float64)
        far[0, 0] = 1e200  # of the first example's mean: ln p(z) is then minus infinity
        model.encoder.register_forward_hook(lambda module, args, lambda_: lambda_ + far)
        return model

    x = images("bernoulli")
    got = learn(broken(make()), x)
    monkeypatch.setattr(end_to_end, "walk_directly", lambda *ignored, **how: None)
    want = learn(broken(make()), x)
    assert torch.isinf(got[3][:, 0]).all() and torch.isfinite(got[3][:, 1:]).all()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_graphs_beyond_the_budget_are_left_to_steps_that_run_again(monkeypatch):
    seen = []
    real = directly.count_bytes
    monkeypatch.setattr(directly, "count_bytes", lambda *args: seen.append(real(*args)) or seen[-1])
    got = learn(make(), images("bernoulli"), recompute=True)
    want = learn(make(), images("bernoulli"))
    assert seen and all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_bytes_of_a_step_are_counted_from_above(kind):
    model, x = make(kind), images(kind)
    walk = bsvi.objective("bsvi-e2e", k=1, width=10).double().refinement
    lambda_ = model.encode(x)
    steps = directly.find_steps(walk, model, x, lambda_, 1.0)
    with GraphSize(True, model.parameters()) as size:
        steps.step(lambda_, None, walk.update.ascent, walk.update.rate(0, lambda_))
    assert 0.3 * directly.count_bytes(steps, lambda_) < size.bytes <= directly.count_bytes(steps, lambda_)


@pytest.mark.parametrize(
    "changed",
    [
        {"momentum": 0.0},
        {"double_sampling": True},
        {"samples": 2},
        {"closed_form_kl": True},
        {"max_grad_norm": float("inf")},
    ],
)
def test_other_walks_keep_their_derivatives(changed, monkeypatch):
    def gradients():
        model, x = make(), images("bernoulli")
        objective = bsvi.objective("bsvi-e2e", k=2, svi=bsvi.SVI(lr=0.3, **changed), width=10).double()
        torch.manual_seed(5)
        objective(model, x).loss.backward()
        return [p.grad for p in [*model.parameters(), *objective.parameters()]]

    got = gradients()
    monkeypatch.setattr(end_to_end, "walk_directly", lambda *ignored, **how: None)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(got, gradients(), strict=True))


def test_where_the_walk_ends_is_where_autograd_ends_it(monkeypatch):
    model, x = make(), images("bernoulli")
    walk = bsvi.objective("bsvi-e2e", k=3, width=10).double().refinement
    lambda_, ends = model.encode(x).detach(), []
    for _ in range(2):
        torch.manual_seed(5)
        ends.append(walk.last(model, x, lambda_))
        monkeypatch.setattr(end_to_end, "find_steps", lambda *ignored: None)
    assert torch.allclose(*ends, rtol=1e-9, atol=1e-11) and not torch.equal(ends[0], lambda_)


def test_a_carried_slope_is_the_derivative_at_corners_too():
    logits = torch.zeros(1, 16, dtype=torch.float64, requires_grad=True)
    weigh, parts = Bernoulli().prepare(torch.ones(1, 16, dtype=torch.float64))
    value, slope = weigh(logits, *parts)
    (got,) = torch.autograd.grad(value.sum(), logits)
    assert torch.equal(got, slope) and torch.allclose(got, torch.full_like(got, 0.5))
    with torch.no_grad():
        assert carry_slope(value, (logits, slope)) is value


COMPILED = """
import torch
import bsvi
from bsvi.beyond import end_to_end
from bsvi.nets import {likelihood}, MLPDecoder, MLPEncoder
from bsvi.system.runtime import CompiledByShape, compile_decoder

CompiledByShape.backend = "{backend}"
torch.set_num_threads(1)
torch.manual_seed(0)
model = bsvi.VAE(MLPEncoder(3, (4, 8), 8), MLPDecoder(3, (4, 8), 8, likelihood={likelihood}()))
x = (torch.rand(6, 1, 4, 8) * 255).round().div(255)
x = x.round() if "{likelihood}" == "Bernoulli" else x
found = []
for compiled in (False, True):
    said = []
    if compiled:
        assert compile_decoder(model.decoder, "on", said.append)
    for method in ("bsvi-e2e", "bsvi-sir"):
        objective = bsvi.objective(method, k=3, svi=bsvi.SVI(lr=0.3, max_grad_norm=1.0), width=6)
        for beta in (0.3, 0.5, 1.0):  # a new beta must not be a new kind of call
            torch.manual_seed(1)
            model.zero_grad()
            estimate = objective(model, x, beta)
            estimate.loss.backward()
        found.append([estimate.bound, *(p.grad.clone() for p in model.parameters())])
    assert said == [], said
kinds = [len(step.kinds) for step in model.decoder._steps.values()]
assert len(kinds) == 3 and max(kinds) <= 2, kinds
for one, two in zip(found[:2], found[2:]):
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(one, two))
import copy, pickle
assert copy.deepcopy(model).decoder._steps == {{}} and pickle.loads(pickle.dumps(model)).decoder.compile_step is None
print("equal")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("likelihood", ["Bernoulli", "DiscretisedLogistic"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_steps_have_the_eager_values_and_gradients(likelihood, backend):
    if backend == "inductor" and runtime.find_compiler_problem() is not None:
        pytest.skip("no C++ compiler")
    script = COMPILED.format(likelihood=likelihood, backend=backend)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
