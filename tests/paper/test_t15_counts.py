"""T15: k steps give exactly k + 1 weights, at the decoder calls that the README's table states. Deterministic."""

import pytest
import torch
from torch import nn

from bsvi import METHODS, SVI, VAE, objective
from tests.oracles import BernoulliDecoder, Counted

CALLS = {  # name: (weights, decoder calls, rows per example) for k = 9
    "vae": (1, 1, 1),
    "iwae": (10, 1, 10),
    "svi": (11, 11, 11),
    "bsvi": (10, 10, 10),
    "bsvi-ds": (10, 19, 19),
    "bsvi-pi": (10, 10, 10),
    "bsvi-sir": (10, 11, 11),
    "bsvi-sir-pi": (10, 11, 11),
    "vae-stl": (1, 1, 1),
    "iwae-dreg": (10, 1, 10),
    "sa-vae": (11, 11, 11),
    "bsvi-e2e": (10, 10, 10),
    "iterative": (11, 11, 11),
    "iterative-bsvi": (10, 10, 10),
}


def make():
    return VAE(nn.Linear(20, 8), Counted(BernoulliDecoder()))


def check_counts(name):
    model, x = make(), torch.rand(7, 20).round()
    estimate = objective(name, k=9)(model, x)
    estimate.loss.backward()
    weights, calls, rows = CALLS[name]
    assert estimate.trajectory.log_w.shape == (weights, 7)
    assert estimate.log_pi.shape == (weights,)
    assert (model.decoder.calls, model.decoder.rows) == (calls, rows * 7)
    assert objective(name, k=9).decoder_calls == rows
    torch.testing.assert_close(estimate.log_pi.exp().sum().item(), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_weights_and_decoder_calls(name):
    check_counts(name)


def test_the_table_covers_every_method():
    assert list(CALLS) == list(METHODS)


def test_m_samples_per_step_are_one_batched_call():
    model, x = make(), torch.rand(7, 20).round()
    estimate = objective("bsvi", k=9, svi=SVI(samples=3))(model, x)
    assert estimate.trajectory.log_w.shape == (30, 7)
    assert (model.decoder.calls, model.decoder.rows) == (10, 30 * 7)


def test_recomputing_runs_the_decoder_once_more_per_draw():
    model, x = make(), torch.rand(7, 20).round()
    objective("bsvi", k=9, recompute=True)(model, x).loss.backward()
    assert model.decoder.calls == objective("bsvi", k=9, recompute=True).decoder_calls == 20


def test_the_encoder_runs_exactly_once_per_step():
    for name in METHODS:
        model = make()
        calls = []
        model.encoder.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        objective(name, k=3)(model, torch.rand(7, 20).round()).loss.backward()
        assert len(calls) == 1


def test_differences_of_gradients_cost_two_more_passes_a_step():
    model, x = make(), torch.rand(7, 20).round()
    made = objective("bsvi-e2e", k=9, finite_difference=True)
    made(model, x).loss.backward()
    assert model.decoder.calls == made.decoder_calls == 28


def test_steps_made_again_in_backward_run_the_decoder_once_more():
    model, x = make(), torch.rand(7, 20).round()
    objective("bsvi-e2e", k=9, recompute=True)(model, x).loss.backward()
    assert model.decoder.calls == 10 + 9  # the first step, by which the graphs are measured, keeps its own
