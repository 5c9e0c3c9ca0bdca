"""How many decoder activations are alive at once: counted, not timed, so the test is exact."""

import pytest
import torch
from torch import nn

from bsvi import SVI, VAE, AllDraws, Objective, objective
from tests.oracles import BernoulliDecoder


class Live:
    """Counts the tensors that autograd keeps for backward, and their peak."""

    def __init__(self):
        self.now = self.peak = 0

    def pack(self, tensor):
        return Held(self, tensor)

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


class Held:
    def __init__(self, live, tensor):
        self.live, self.tensor = live, tensor
        live.now += tensor.numel()
        live.peak = max(live.peak, live.now)

    def __del__(self):
        self.live.now -= self.tensor.numel()


def peak(name, k, **options):
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder(hidden=256))
    with Live() as live:
        objective(name, k=k, **options)(model, torch.rand(50, 20).round()).loss.backward()
    return live.peak


@pytest.mark.parametrize("name", ["svi", "bsvi-sir", "bsvi-sir-pi"])
def test_with_resampling_no_decoder_graph_outlives_its_step(name):
    # what grows with k is a few numbers per example (ln w), not activations: the 256 hidden units alone are 12,800 numbers
    assert peak(name, 40) - peak(name, 4) < 36 * 50 * 8


def test_recomputing_keeps_one_graph_and_keeping_keeps_all():
    kept = peak("bsvi", 40) / peak("bsvi", 4)
    recomputed = peak("bsvi", 40, recompute=True) / peak("bsvi", 4, recompute=True)
    assert kept > 6
    assert recomputed < 1.3


def test_double_sampling_frees_its_probes():
    options = {"svi": SVI(double_sampling=True)}
    assert peak("bsvi-sir", 40, **options) - peak("bsvi-sir", 4, **options) < 36 * 50 * 8


def test_beyond_its_budget_bsvi_recomputes_by_itself_and_iwae_on_request():
    def bsvi(k, budget):
        torch.manual_seed(0)
        model = VAE(nn.Linear(20, 8), BernoulliDecoder(hidden=256))
        with Live() as live:
            Objective(SVI(steps=k), theta=AllDraws(budget=budget))(model, torch.rand(50, 20).round()).loss.backward()
        return live.peak

    assert bsvi(40, 1e12) > 6 * bsvi(4, 1e12)
    assert bsvi(40, 1e4) < 1.3 * bsvi(4, 1e4)
    assert peak("iwae", 40) > 6 * peak("iwae", 4)
    assert peak("iwae", 40, recompute=True) < 0.5 * peak("iwae", 40)
