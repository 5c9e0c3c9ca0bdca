"""A Function that loses second-order terms is noticed at the first step, and no other decoder is. Deterministic: fixed noise."""

import warnings

import pytest
import torch
from torch import nn

from bsvi import SVI, VAE, Objective
from bsvi.beyond.end_to_end import EndToEnd
from bsvi.beyond.twice import is_tried
from bsvi.planning.operations import OperationCounter
from tests.oracles import FLOAT, BernoulliDecoder


def square(*, exact):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z.square()

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            return 2 * z * g if exact else (2 * z * g).detach()

    return Square.apply


class Product(torch.autograd.Function):
    """z W, whose backward takes W for a constant: the Hessian by z is right, the mixed one is lost."""

    @staticmethod
    def forward(ctx, z, weight):
        ctx.save_for_backward(z, weight)
        return z @ weight

    @staticmethod
    def backward(ctx, g):
        z, weight = ctx.saved_tensors
        return g @ weight.detach().T, z.T @ g


class Decoder(nn.Module):
    def __init__(self, function, inside=nn.Identity):
        super().__init__()
        self.net, self.function = nn.Sequential(nn.Linear(4, 64), inside(), nn.Linear(64, 20)), function

    def forward(self, x, z):
        return -self.function(self.net(z) - x).sum(-1)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 20))

    def forward(self, x, z):
        return (Product.apply(z, self.weight) * x).sum(-1)


def first_step(decoder, dtype=FLOAT, **how):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), decoder).to(dtype)
    objective = Objective(EndToEnd(SVI(steps=2, lr=0.1), **how)).to(dtype)
    objective(model, torch.rand(6, 20, dtype=dtype)).loss.backward()
    return objective


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT])
@pytest.mark.parametrize("make", [lambda: Decoder(square(exact=False), nn.Tanh), Linear], ids=["z", "weights"])
def test_a_function_that_detaches_is_told_of_finite_differences(make, dtype):
    with pytest.warns(UserWarning, match=r"(Square|Product) is not what .* finite_difference=True") as told:
        objective = first_step(make(), dtype)
    assert len(told) == 1 and "\n" not in str(told[0].message)
    assert is_tried(objective.refinement)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_step(make(), dtype, finite_difference=True)


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT])
@pytest.mark.parametrize("inside", [nn.Identity, nn.Tanh, nn.ReLU])
def test_a_function_that_keeps_its_graph_is_not(inside, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_step(Decoder(square(exact=True), inside), dtype)


def test_the_trial_draws_no_noise_and_leaves_no_gradient():
    found = []
    for function in (square(exact=True), torch.square):  # the second is not tried by differences
        torch.manual_seed(1)
        decoder = Decoder(function, nn.Tanh)
        first_step(decoder)
        found.append((torch.get_rng_state(), [p.grad for p in decoder.parameters()]))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-10, atol=1e-12)


def test_a_plan_counts_a_decoder_with_a_function_of_its_own():
    model = VAE(nn.Linear(20, 8), Decoder(square(exact=False), nn.Tanh)).to("meta")
    objective = Objective(EndToEnd(SVI(steps=2, lr=0.1))).to("meta")
    with warnings.catch_warnings(), OperationCounter():
        warnings.simplefilter("error")
        assert objective(model, torch.empty(6, 20, device="meta")).decoder_calls == 3


def test_decoders_of_torchs_own_operations_are_tried_without_differences(monkeypatch):
    monkeypatch.setattr("bsvi.beyond.twice.loses_terms", lambda *_: pytest.fail("tried by differences"))
    first_step(BernoulliDecoder())
