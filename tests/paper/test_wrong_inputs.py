"""Wrong inputs to what takes data and models of one's own: each is one line that says what, what was got and what to do."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bsvi
from bsvi.system.errors import NotFinite

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(3))
pytestmark = pytest.mark.usefixtures("as_users_call")


class Decoder(nn.Linear):
    def forward(self, x, z):
        return -(x - super().forward(z)).square().sum(-1)


def make_model(**options):
    torch.manual_seed(0)
    return bsvi.VAE(nn.Linear(5, 4), Decoder(2, 5), **options)


def check_refused(*cases):
    """Each call raises a TypeError or ValueError of one line that matches."""
    for call, message in cases:
        with pytest.raises((TypeError, ValueError), match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_what_is_no_function_of_a_batch_and_what_is_no_batch_is_one_line():
    one, pair = make_model(), [(X, torch.arange(12))]
    check_refused(
        (lambda: bsvi.evaluate(one, pair, k=2, batch=0), r"batch= must be a function .*lambda b: b\[0\], got int"),
        (lambda: bsvi.ais(one, X, ids=torch.arange(12)), r"ids= must be a function of a loader's batch.*got Tensor"),
        (lambda: bsvi.evaluate(one, {"a": X, "b": torch.tensor(1.0)}, k=2), r"x\['b'\] is \(\); what is the same"),
        (lambda: bsvi.refine(one, torch.tensor(1.0)), r"x must be a tensor \(batch, ...\)"),
        (lambda: bsvi.amortization_gap(one, X[:0]), r"with at least one example, got \(0, 5\)"),
    )


def test_infinity_is_not_called_a_missing_value():
    allowed = make_model(nan_is_missing=True)
    with pytest.raises(
        ValueError, match=r"^x holds infinity in 12 of 12 examples \(first at index 0\); clean the data$"
    ):
        bsvi.evaluate(allowed, X + math.inf, k=2)
    with pytest.raises(NotFinite, match=r"step 1: x holds infinity in 12 of 12 training examples, .*clean the data$"):
        bsvi.train(allowed, bsvi.objective("vae"), [X + math.inf])


def test_what_training_cannot_use_is_one_line():
    one, objective = make_model(), bsvi.objective("vae")
    frozen = make_model().requires_grad_(False)
    check_refused(
        (lambda: bsvi.train(one, objective, X), r"batches must be many batches, got one Tensor; .*\[x\]"),
        (lambda: bsvi.train(one, objective, {"a": X}), "batches must be many batches, got one dict"),
        (lambda: bsvi.train(one, objective, [X], valid=X), "valid must be many batches, got one Tensor"),
        (lambda: bsvi.train(one, objective, None), "batches must be a list of batches, .* got NoneType"),
        (
            lambda: bsvi.train(one, "bsvi", [X]),
            r'objective must be an Objective, got str; .*bsvi.objective\("bsvi-sir"',
        ),
        (lambda: bsvi.train(objective, one, [X]), "objective must be an Objective, got VAE"),
        (lambda: bsvi.train(None, objective, [X]), "a torch.nn.Module with parameters, got NoneType"),
        (lambda: bsvi.train(frozen, objective, [X]), "all parameters of VAE are frozen"),
    )


@pytest.mark.parametrize(
    ("ids", "said"), [(list("abcdefghijkl"), "batch ids b;"), (np.arange(12), "batch ids 1;"), ([7], "batch ids 7;")]
)
def test_messages_of_training_name_ids_of_any_kind(ids, said):
    holed = X.clone()
    holed[1] = math.nan
    with pytest.raises(NotFinite, match=said):
        bsvi.train(make_model(), bsvi.objective("vae"), [(holed, ids)], batch=lambda b: b[0], ids=lambda b: b[1])
