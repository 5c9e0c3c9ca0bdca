"""Refined posteriors as a result, against a model whose posterior is in the family; effort and time of the gap."""

import io
import sys

import numpy as np
import pytest
import torch

import bsvi
from bsvi.evaluation.gap import EFFORTS, amortization_gap
from tests.evaluation.oracle import Diagonal, data

MODEL = Diagonal(wider=1.0, shift=0.5)
X = data(MODEL, 30)


def test_the_refined_q_is_the_posterior_where_the_family_holds_it():
    """Adam ends within 0.02 nats of the optimum; 6 standard errors beside it. The encoder's gap is known."""
    refined = bsvi.refine(MODEL, X, steps=200)
    exact = Diagonal().encode(X).detach()
    assert (refined.lambda_ - exact).abs().max() < 0.4  # the encoder is off by 0.5 and 1
    assert (refined.mean - exact[:, :2]).abs().mean() < 0.3 * (MODEL.encode(X) - exact)[:, :2].abs().mean()
    assert abs(refined.gain.mean - MODEL.amortization_gap()) < 0.02 + 6 * refined.gain.stderr
    assert refined.q().batch_shape == (30,) and refined.seconds_per_example > 0 and "gained" in str(refined)


def test_a_store_goes_on_and_any_batching_gives_the_same(tmp_path):
    store = tmp_path / "refined.jsonl"
    bsvi.refine(MODEL, [X[:10]], steps=5, store=store)
    size = store.stat().st_size
    resumed = bsvi.refine(MODEL, [X[:10], X[10:]], steps=5, store=store)
    whole = bsvi.refine(MODEL, X, steps=5)
    assert store.stat().st_size > size and resumed.lambda_.dtype == whole.lambda_.dtype == torch.float64
    torch.testing.assert_close(resumed.lambda_, whole.lambda_)
    with pytest.raises(ValueError, match="holds another evaluation"):
        bsvi.refine(MODEL, X, steps=6, store=store)
    stored = bsvi.refine(MODEL, X, steps=5, store=store)
    assert torch.equal(stored.lambda_, resumed.lambda_)


def test_a_wrapped_model_gives_its_own_distributions_back():
    net = torch.nn.Linear(3, 2)
    model = bsvi.wrap(
        lambda x: {"a": torch.distributions.Normal(net(x), 0.5)},
        lambda x, z: torch.distributions.Normal(z["a"], 0.3).log_prob(x[:, :2]).sum(-1),
        module=net,
    )
    refined = bsvi.refine(model, torch.randn(4, 3), steps=20)
    assert isinstance(refined.q()["a"], torch.distributions.Normal) and refined.q()["a"].loc.shape == (4, 2)


def test_means_of_several_sites_have_their_names_and_where_there_is_none_it_is_said():
    def two(x):
        return {"a": torch.distributions.Normal(x[:, :2], 1.0), "b": torch.distributions.Normal(x[:, 0], 1.0)}

    x = torch.randn(4, 3)
    model = bsvi.wrap(two, lambda x, z: -(x[:, :2] - z["a"]).square().sum(-1) - z["b"].square())
    refined = bsvi.refine(model, x, steps=5)
    assert {name: tuple(mean.shape) for name, mean in refined.mean.items()} == {"a": (4, 2), "b": (4,)}
    squash = [torch.distributions.SigmoidTransform()]

    def chance(x):
        return torch.distributions.TransformedDistribution(torch.distributions.Normal(x[:, :1], 1.0), squash)

    prior = torch.distributions.Beta(1.0, 1.0)
    squashed = bsvi.wrap(chance, lambda x, z: -(x[:, :1] - z).square().sum(-1), prior=prior)
    with pytest.raises(ValueError, match="knows no mean; average draws"):
        _ = bsvi.refine(squashed, x, steps=5).mean
    by_x = bsvi.VAE(
        torch.nn.Linear(3, 4), lambda x, z: -z.sum(-1).square(), lambda lambda_, x: bsvi.DiagonalGaussian(lambda_)
    )
    refined = bsvi.refine(by_x, x, steps=5)
    assert refined.q(x).mean.shape == (4, 2)
    with pytest.raises(ValueError, match="depends on x; give all 4 examples"):
        _ = refined.mean


def test_effort_sets_steps_and_draws_and_quick_finds_the_same_gap():
    quick = amortization_gap(MODEL, X, effort="quick")
    same = amortization_gap(MODEL, X, steps=EFFORTS["quick"], k=EFFORTS["quick"], keep_lambda=True)
    assert (quick.columns["amortization_gap"] == same.columns["amortization_gap"]).all()
    assert abs(quick.amortization_gap.mean - MODEL.amortization_gap()) < 0.05 + 6 * quick.amortization_gap.stderr
    assert 0 < quick.summary()["seconds_per_example"] < quick.seconds
    with pytest.raises(ValueError, match="effort must be one of quick, default, thorough, got 'fast'"):
        amortization_gap(MODEL, X, effort="fast")
    with pytest.raises(ValueError, match="keep_lambda=True"):
        quick.lambda_  # noqa: B018
    assert same.lambda_.shape == (30, 4)


def test_the_optimum_is_written_for_each_example(tmp_path):
    gap = amortization_gap(MODEL, X, steps=3, k=3, keep_lambda=True)
    gap.save_optimum(tmp_path / "optimum.npz")
    with np.load(tmp_path / "optimum.npz") as saved:
        assert (saved["lambda_"] == gap.lambda_).all() and (saved["ids"] == gap.ids).all()
        assert (saved["elbo"] == gap.elbo.per_example).all()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_a_terminal_alone_unless_it_is_given(monkeypatch):
    for stream, given, shown in (
        (Terminal(), None, True),
        (io.StringIO(), None, False),
        (Terminal(), lambda _: None, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        bsvi.evaluate(MODEL, X, k=2, progress=given)
        assert ("30 examples" in stream.getvalue()) == shown


class ByX(torch.nn.Module):
    """A family that depends on x, and as many latents as x has columns."""

    def encode(self, x):
        return torch.cat([x, 0 * x], -1)

    def posterior(self, lambda_, x):
        return bsvi.DiagonalGaussian(lambda_ + 0 * x.sum())

    def log_prior(self, z):
        return -0.5 * z.square().sum(-1)

    def log_lik(self, x, z):
        return -(x - z).square().sum(-1)


def test_a_family_of_ones_own_that_depends_on_x_asks_for_all_of_x():
    x = torch.randn(4, 3)
    refined = bsvi.refine(ByX(), x, steps=3)
    for given in ((), (x[:2],)):
        with pytest.raises(ValueError, match=r"depends on x; give all 4 examples in the order of ids, got (none|2)"):
            refined.q(*given)
    assert refined.q(x).batch_shape == (4,)


def test_lambda_of_several_widths_is_not_cut_to_the_smallest():
    batches = [torch.randn(4, 3), torch.randn(4, 5)]
    for call in (
        lambda: bsvi.refine(ByX(), batches, steps=2),
        lambda: bsvi.amortization_gap(ByX(), batches, steps=2, k=2, keep_lambda=True),
    ):
        with pytest.raises(ValueError, match="lambda has 6 or 10 parameters, by the batch"):
            call()
    assert len(bsvi.amortization_gap(ByX(), batches, steps=2, k=2).ids) == 8


def test_a_killed_call_goes_on_from_a_stream_and_computes_nothing_twice(tmp_path):
    """The batches come from a generator, one at a time, and the third one fails."""

    class Counted(Diagonal):
        seen = 0

        def encode(self, x):
            self.seen += len(x)
            return super().encode(x)

    def stream(until):
        for at in range(0, 30, 6):
            if at == until:
                raise KeyboardInterrupt
            yield X[at : at + 6]

    model, store = Counted(wider=1.0, shift=0.5), tmp_path / "refined"
    with pytest.raises(KeyboardInterrupt):
        bsvi.refine(model, stream(12), steps=5, store=store)
    model.seen = 0
    resumed = bsvi.refine(model, stream(None), steps=5, store=store)
    first = model.seen
    model.seen = 0
    whole = bsvi.refine(model, stream(None), steps=5)
    assert torch.equal(resumed.lambda_, whole.lambda_) and first < model.seen
