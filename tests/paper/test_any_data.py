"""x may be any nesting of tensors that share their first axis: every number is that of the same data in one tensor."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bsvi
from bsvi.examples import check_axis, repeat, take, unpack
from bsvi.theta import Recomputed

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(3))


class Sequences(NamedTuple):
    steps: Tensor
    rest: dict[str, Tensor | None]


NESTINGS = {
    "dict": lambda x: {"counts": x[:, :3], "covariates": x[:, 3:]},
    "tuple": lambda x: (x[:, :3], [x[:, 3:4], x[:, 4:]]),
    "named tuple": lambda x: Sequences(x[:, :2], {"more": x[:, 2:], "none": None}),
}


def flat(x):
    """All tensors side by side, as they were before."""
    if isinstance(x, Tensor):
        return x
    parts = x.values() if isinstance(x, dict) else x
    return torch.cat([flat(part) for part in parts if part is not None], -1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 4)

    def forward(self, x):
        return self.net(flat(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 5)

    def forward(self, x, z):
        return -(flat(x) - self.net(z)).square().sum(-1)


def model(**options):
    torch.manual_seed(0)
    return bsvi.VAE(Encoder(), Decoder(), **options)


@pytest.mark.parametrize("nesting", NESTINGS)
def test_every_number_is_that_of_the_same_data_in_one_tensor(nesting, tmp_path):
    nested, one = NESTINGS[nesting](X), model()
    whole = nested if nesting != "tuple" else [(nested,)]  # a tuple of all examples could be batches
    for call in (
        lambda x: bsvi.evaluate(one, x, k=3, iwae=4).columns["log_likelihood"],
        lambda x: bsvi.evaluate(one, x, k=3, iwae=4).columns["elbo"],
        lambda x: bsvi.amortization_gap(one, x, steps=5, k=5).columns["amortization_gap"],
        lambda x: bsvi.ais(one, x, chains=2, temperatures=4, leapfrog=2).columns["log_likelihood"],
    ):
        assert (call(X) == call(whole)).all()


@pytest.mark.parametrize("method", bsvi.METHODS)
def test_every_method_has_the_same_gradient(method):
    gradients = []
    for x in (X, NESTINGS["tuple"](X)):
        one, objective = model(), bsvi.objective(method, k=2)
        torch.manual_seed(1)
        objective(one, x).loss.backward()
        gradients.append([p.grad for p in one.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_draws_of_weight_zero_are_replaced_with_their_own_examples():
    class Cliff(Decoder):
        def forward(self, x, z):
            return torch.where(z[:, 0] > 1.5, -math.inf, super().forward(x, z))

    for rule in (bsvi.AllDraws(), Recomputed()):
        found = []
        for x in (X, NESTINGS["dict"](X)):
            torch.manual_seed(0)
            one = bsvi.VAE(Encoder(), Cliff())
            torch.manual_seed(4)
            bsvi.Objective(bsvi.SVI(steps=6), theta=rule)(one, x).loss.backward()
            found.append(one.decoder.net.weight.grad)
        assert torch.isfinite(found[0]).all() and torch.equal(*found)


def test_training_takes_x_out_of_a_loaders_batch():
    weights = []
    for batches, options in (
        ([X], {}),
        ([NESTINGS["dict"](X)], {}),
        (DataLoader(TensorDataset(X), 12, generator=torch.Generator()), {}),
        (DataLoader(TensorDataset(X, torch.arange(12)), 12, generator=torch.Generator()), {"batch": lambda b: b[0]}),
        ([{"image": X, "label": torch.arange(12)}], {"batch": lambda b: b["image"], "ids": lambda b: b["label"]}),
    ):
        one = model()
        torch.manual_seed(5)
        settings = bsvi.Training(steps=3, valid_every=1)
        bsvi.train(one, bsvi.objective("bsvi-sir", k=2), batches, batches, settings, **options)
        weights.append(one.decoder.net.weight)
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_a_second_element_is_never_silently_taken_for_ids():
    loader = DataLoader(TensorDataset(X, torch.arange(12).flip(0)), batch_size=4)  # labels that could be ids
    for call in (
        lambda: bsvi.evaluate(model(), loader, k=2),
        lambda: bsvi.amortization_gap(model(), loader),
        lambda: bsvi.ais(model(), loader),
        lambda: bsvi.train(model(), bsvi.objective("vae"), loader),
    ):
        with pytest.raises(
            TypeError, match=r"a list of 2, and which of them is x is not said; give batch=lambda b: b\[0\]"
        ):
            call()
    plain = bsvi.evaluate(model(), loader, k=2, batch=lambda b: b[0])
    named = bsvi.evaluate(model(), loader, k=2, batch=lambda b: b[0], ids=lambda b: b[1])
    assert plain.ids.tolist() == named.ids.tolist() == list(range(12))
    assert np.allclose(plain.columns["elbo"], bsvi.evaluate(model(), X, k=2).columns["elbo"], 1e-5)
    again = bsvi.evaluate(model(), X.flip(0), k=2)  # where the ids say that they stand
    assert np.allclose(named.columns["elbo"], again.columns["elbo"], 1e-5)
    assert not np.allclose(named.columns["elbo"], plain.columns["elbo"], 1e-5)


def test_a_store_goes_on_and_notices_another_covariate(tmp_path):
    nested, one = NESTINGS["dict"](X), model()
    store = tmp_path / "scores.jsonl"
    bsvi.evaluate(one, take(nested, slice(6)), k=2, store=store)
    size = store.stat().st_size
    scores = bsvi.evaluate(one, nested, k=2, store=store)
    assert store.stat().st_size > size
    at_once = bsvi.evaluate(one, nested, k=2).columns["elbo"]  # in another batch: float32 rounds otherwise
    assert np.allclose(scores.columns["elbo"], at_once, rtol=1e-5)
    for other in (
        {**nested, "covariates": nested["covariates"] + 1},
        {"covariates": nested["covariates"], "counts": nested["counts"]},
    ):
        with pytest.raises(ValueError, match="holds example 0 with other data"):
            bsvi.evaluate(one, other, k=2, store=store)


def test_padded_sequences_of_different_lengths_in_each_batch():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 4)

        def forward(self, x):
            mask = torch.arange(x["steps"].shape[1]) < x["length"][:, None]
            return self.net(torch.stack([(x["steps"] * mask).sum(1), x["length"].float()], -1))

    def log_lik(x, z):
        mask = torch.arange(x["steps"].shape[1]) < x["length"][:, None]
        return -((x["steps"] - z[:, :1]).square() * mask).sum(-1)

    lengths = torch.tensor([3, 1, 2, 5])
    steps = torch.randn(4, 5)
    torch.manual_seed(0)
    one = bsvi.VAE(Steps(), log_lik)
    whole = bsvi.evaluate(one, {"steps": steps, "length": lengths}, k=5)
    cut = [{"steps": steps[:3, :3], "length": lengths[:3]}, {"steps": steps[3:], "length": lengths[3:]}]
    torch.testing.assert_close(
        torch.tensor(bsvi.evaluate(one, cut, k=5).columns["elbo"]),
        torch.tensor(whole.columns["elbo"]),
        rtol=1e-5,
        atol=0,
    )


def test_nan_is_a_missing_value_where_the_model_says_so():
    holes = torch.where(X > 1.0, math.nan, X)

    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(5, 4)

        def forward(self, x):
            return self.net(x.nan_to_num(0.0))

    def log_lik(x, z):
        return -(x - z.sum(-1, keepdim=True)).square().nan_to_num(0.0).sum(-1)

    refused, allowed = (bsvi.VAE(Seen(), log_lik, nan_is_missing=missing) for missing in (False, True))
    with pytest.raises(ValueError, match=r"x holds NaN or infinity in .*nan_is_missing=True"):
        bsvi.evaluate(refused, holes, k=2)
    assert math.isfinite(bsvi.evaluate(allowed, holes, k=2).log_likelihood.mean)
    bsvi.train(allowed, bsvi.objective("bsvi", k=2), [holes], [holes], bsvi.Training(steps=1, valid_every=1))
    with pytest.raises(ValueError, match=r"x holds infinity in 12"):
        bsvi.evaluate(allowed, holes.nan_to_num(math.inf) + math.inf, k=2)


def test_a_mistake_in_a_nesting_is_one_line_that_names_the_part():
    for x, message in (
        ({"a": X, "b": X[:3]}, r"x\['a'\] has 12, x\['b'\] is \(3, 5\)"),
        (
            {"a": X, "b": torch.tensor(1.0)},
            r"x\['b'\] is \(\); what is the same for all examples belongs into the model",
        ),
        ({"a": X, "names": ["one"] * 12}, r"x\['names'\]\[0\] must be a tensor.*got str.*batch=lambda b: b\[0\]"),
        ({}, "at least one tensor, got an empty dict"),
        ({"a": X[:0]}, r"x\['a'\] must be a tensor \(batch, ...\) with at least one example"),
    ):
        with pytest.raises((TypeError, ValueError), match=message) as error:
            bsvi.objective("vae")(model(), x)
        assert "\n" not in str(error.value)


def test_rows_are_repeated_and_taken_in_every_part():
    x = NESTINGS["named tuple"](X)
    twice = repeat(x, 2)
    check_axis(twice)
    assert isinstance(twice, Sequences) and torch.equal(flat(twice), torch.cat([X, X]))
    assert torch.equal(flat(take(x, torch.tensor([4, 1]))), X[[4, 1]])
    assert unpack([x])[0] is x and unpack(x) == (x, None)
