"""evaluate(): the right numbers, exactly the draws asked for, and the same for any batching."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from bsvi import SVI, VAE, Uniform, giwae
from bsvi.draws import weigh
from bsvi.evaluation.evaluate import IWAE, LAST, WALK, evaluate
from bsvi.evaluation.noise import KeyedModel
from bsvi.evaluation.passes import NOT_KEYED
from tests.evaluation.oracle import Diagonal, batches, data
from tests.oracles import BernoulliDecoder, Counted

PER_EXAMPLE = ["log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo"]


def network(posterior=None):
    torch.manual_seed(0)
    family = {} if posterior is None else {"posterior": posterior}
    model = VAE(nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)), BernoulliDecoder(), **family)
    model.encoder(torch.rand(64, 20))  # running statistics that are not the defaults
    return model, torch.rand(60, 20).round()


def assert_same(a, b, tolerance=1e-4):
    assert a.ids.tolist() == b.ids.tolist()
    assert list(a.columns) == list(b.columns)
    for name in a.columns:
        np.testing.assert_allclose(a.columns[name], b.columns[name], rtol=1e-3 if "ess" in name else 0, atol=tolerance)


def test_every_number_is_that_of_algorithm_1_on_the_same_noise():
    """Kept trajectories and direct sums in place of streams."""
    model, x = network()
    model.eval()
    svi, ids = SVI(steps=30, lr=0.1), torch.arange(60)
    scores = evaluate(model, [x], k=30, svi=svi, iwae=(7, 50), seed=4, elbo_draws=5)
    lambda_0 = model.encode(x).detach()
    steps = list(svi.walk(KeyedModel(model, 4, WALK, ids), x, lambda_0))
    log_w = torch.cat([step.weighed.log_w for step in steps])
    draws = weigh(model, x, KeyedModel(model, 4, IWAE, ids).posterior(lambda_0), 50).log_w.detach()
    q = KeyedModel(model, 4, LAST, ids).posterior(steps[-1].lambda_)
    reconstruction = -weigh(model, x, q, 5).log_lik.mean(0).detach()
    expected = {
        "log_likelihood": giwae(log_w, Uniform()(31)),
        "iwae_7": giwae(draws[:7], Uniform()(7)),
        "iwae_50": giwae(draws, Uniform()(50)),
        "amortized_elbo": draws.mean(0),
        "reconstruction": reconstruction,
        "kl": model.kl(q.q).detach(),
        "bsvi_ess": log_w.exp().sum(0).square() / log_w.exp().square().sum(0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(scores.columns[name], value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    assert scores.log_likelihood.per_example is scores.columns["log_likelihood"]


def test_elbo_is_minus_reconstruction_minus_kl_exactly():
    model, x = network()
    scores = evaluate(model, x, k=10, iwae=())
    assert (scores.elbo.per_example == -(scores.reconstruction.per_example + scores.kl.per_example)).all()
    assert (scores.kl.per_example >= 0).all()


def test_without_a_closed_form_kl_the_identity_holds_too():
    model, x = network()
    plain = type(
        "Plain", (), {n: staticmethod(getattr(model, n)) for n in ("encode", "posterior", "log_prior", "log_lik")}
    )
    model.eval()
    scores, whole = evaluate(plain(), x, k=10, iwae=()), evaluate(model, x, k=10, iwae=())
    assert (scores.elbo.per_example == -(scores.reconstruction.per_example + scores.kl.per_example)).all()
    np.testing.assert_array_equal(scores.reconstruction.per_example, whole.reconstruction.per_example)
    assert not np.array_equal(scores.kl.per_example, whole.kl.per_example)


@pytest.mark.parametrize("chunk", [None, 1, 3, 100])
@pytest.mark.parametrize("k", [1, 7, 12])
def test_exactly_the_draws_asked_for_at_any_chunk_size(chunk, k):
    model, x = network()
    model.decoder = Counted(model.decoder)
    evaluate(model, batches(x, 25), k=k, iwae=(2, 5, 11), chunk=chunk, elbo_draws=4)
    assert model.decoder.rows == 60 * ((k + 1) + 11 + 4)


def test_default_iwae_draws_are_multiples_of_k():
    model, x = network()
    assert list(evaluate(model, x[:3], k=4).iwae) == [4, 8, 12, 16, 20]
    assert evaluate(model, x[:3], k=4, iwae=()).iwae == {}


FAMILIES = {
    "diagonal": None,
    "independent normal": lambda v: Independent(Normal(v[:, :4], v[:, 4:].exp()), 1),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_batch_size_order_and_chunks_change_no_number(family):
    model, x = network(FAMILIES[family])
    options = {"k": 25, "svi": SVI(lr=0.1, samples=2), "iwae": (10, 40)}
    whole = evaluate(model, batches(x, 60), **options)
    assert NOT_KEYED not in whole.warnings
    for size, backwards, chunk in ((7, True, 1), (25, False, 13)):
        assert_same(evaluate(model, batches(x, size, backwards), chunk=chunk, **options), whole)
    alone = evaluate(model, batches(x, 1)[:8], **options)
    np.testing.assert_allclose(alone.log_likelihood.per_example, whole.log_likelihood.per_example[:8], atol=1e-4)
    some = evaluate(model, [x[10:13]], ids=lambda _: range(10, 13), **options)  # as one of many workers
    np.testing.assert_allclose(some.log_likelihood.per_example, whole.log_likelihood.per_example[10:13], atol=1e-4)


def test_another_seed_gives_other_numbers_and_the_callers_generator_is_left_alone():
    model, x = network()
    state = torch.get_rng_state()
    one, two = (evaluate(model, x, k=5, seed=seed).log_likelihood.per_example for seed in (0, 1))
    assert (one != two).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_that_cannot_be_keyed_is_repeatable_and_said():
    def gamma(v):
        return Independent(torch.distributions.Gamma(v[:, :4].exp(), v[:, 4:].exp()), 1)

    model, x = network(gamma)
    model.prior = Independent(torch.distributions.Gamma(torch.ones(4), torch.ones(4)), 1)
    first, again = (evaluate(model, batches(x, 30), k=5) for _ in range(2))
    assert_same(first, again, 0)
    assert NOT_KEYED in first.warnings


class Named:
    def __init__(self, x, ids):
        self.x, self.ids = x, ids


def test_batches_may_be_tensors_lists_of_one_or_objects_and_one_tensor_is_all():
    model, x = network()
    pairs = evaluate(model, batches(x, 20), k=3)
    assert_same(evaluate(model, [Named(*pair) for pair in batches(x, 20)], k=3), pairs)
    assert_same(evaluate(model, list(x.split(20)), k=3), pairs)
    assert_same(evaluate(model, ([part] for part in x.split(20)), k=3), pairs)
    assert_same(evaluate(model, x, k=3), pairs)


def test_modes_and_gradient_flags_are_as_they_were_even_after_an_error():
    model, x = network()
    model.encoder[1].eval()
    model.decoder.net[0].weight.requires_grad_(False)
    before = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    seen = []
    evaluate(model, x, k=2, progress=lambda done: seen.append((done, model.training, model.encoder[0].training)))
    with pytest.raises(ValueError, match="NaN"):
        evaluate(model, x / 0.0, k=2)
    assert seen == [(50, False, False), (60, False, False)]
    assert ([m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]) == before
    assert all(p.grad is None for p in model.parameters())


def test_a_weight_that_is_not_finite_counts_as_zero_and_is_reported():
    class Sometimes(BernoulliDecoder):
        def forward(self, x, z):
            return torch.where(z[:, 0] > 0, math.nan, super().forward(x, z))

    model, x = network()
    good = evaluate(model, x, k=20, iwae=(40,))
    model.decoder = Sometimes()
    scores = evaluate(model, x, k=20, iwae=(40,))
    assert np.isfinite(scores.log_likelihood.per_example).all()
    assert np.isfinite(scores.iwae[40].per_example).all()
    assert any("not finite" in line for line in scores.warnings)
    assert not any("not finite" in line for line in good.warnings)


def test_estimates_on_the_exact_model_are_close_to_it():
    """The encoder's q is wider than the posterior by 0.5 in log-variance, so weights are bounded: deterministic noise, and the
    tolerance is 6 standard errors of the per-example differences."""
    model = Diagonal(wider=0.5)
    x = data(model, 400)
    scores = evaluate(model, x, k=100, svi=SVI(), iwae=(100, 500))
    exact = model.exact_log_p(x).numpy()
    for score in (scores.log_likelihood, *scores.iwae.values()):
        difference = score.per_example - exact
        assert abs(difference.mean()) < 6 * difference.std() / 20 + 0.005
    loss = exact - scores.amortized_elbo.per_example
    assert abs(loss.mean() - model.amortization_gap()) < 6 * loss.std() / 20


def test_the_last_proposal_is_better_than_a_poor_encoders():
    model = Diagonal(wider=0.5, shift=1.0)
    scores = evaluate(model, data(model, 50), k=100, iwae=(100,))
    assert (scores.elbo - scores.amortized_elbo).mean > 0.9 * model.amortization_gap() > 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"iwae": (0,)}, "iwae must be at least 1"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"batches": []}, "no example"),
        ({"batches": ["x"]}, "x must be a tensor, or dicts"),
        ({"batches": [torch.zeros(3, 20)], "ids": lambda _: [1, 2]}, "ids are 3 whole numbers"),
        ({"batches": [torch.zeros(2, 20)], "ids": lambda _: [0.5, 1.5]}, "ids are 2 whole numbers"),
        ({"batches": [torch.zeros(3, 20)], "ids": lambda _: [1, 2, 1]}, "id 1 comes twice"),
        ({"batches": [torch.zeros(0, 20)]}, "at least one example"),
    ],
)
def test_a_users_mistake_is_one_clear_line(change, message):
    model, x = network()
    with pytest.raises((ValueError, TypeError), match=message) as error:
        evaluate(model, **({"batches": x, "k": 2} | change))
    assert "\n" not in str(error.value)


def test_a_mistake_of_type_is_one_clear_line_too():
    """In a process of its own: here the tests' type checks would speak first."""
    code = """if True:
        import torch
        from bsvi import VAE
        from bsvi.evaluation.evaluate import evaluate
        model = VAE(torch.nn.Linear(3, 4), lambda x, z: -(x[:, :2] - z).square().sum(-1))
        for options in ({"k": 2.5}, {"k": True}, {"batches": 7}, {"model": 3}):
            try:
                evaluate(**({"model": model, "batches": torch.zeros(2, 3), "k": 2} | options))
            except (ValueError, TypeError) as error:
                print(error)
    """
    lines = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()
    starts = ["k must be", "k must be", "batches must be", "a model needs"]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 4


def test_batch_coupled_clipping_is_said():
    model, x = network()
    scores = evaluate(model, x, k=2, svi=replace(SVI(), clip="batch"))
    assert any("couples" in line for line in scores.warnings)
