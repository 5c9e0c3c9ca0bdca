"""Health: one line when something looks wrong, with what to try, and none when all is well."""

import math

import pytest
import torch

import bsvi
from bsvi.bounds import responsibilities
from bsvi.training.health import NAMES, Meter, list_ids, list_problems
from bsvi.training.loop import Watcher
from tests.training.small import batches, make, settings

WELL = {
    "step": 100,
    "beta": 1.0,
    "svi_0": -90.0,
    "svi_k": -89.0,
    "bsvi_k": -88.0,
    "nonfinite": 0.0,
    "moved": 0.7,
    "ess": 4.0,
    "ess_of_pi": 10.0,
    "active_units": 20,
    "latents": 32,
    "kl_per_latent": 0.5,
}


def test_a_healthy_line_gives_no_warning():
    assert list_problems(WELL) == []
    for name in ("active_units", "latents", "kl_per_latent"):  # a family that tells no mean
        assert list_problems({key: value for key, value in WELL.items() if key != name or key == "latents"}) == []


@pytest.mark.parametrize(
    ("changes", "told", "advice"),
    [
        ({"svi_k": -92.0, "bsvi_k": -91.0}, "SVI-k (-92.00) is below SVI-0 (-90.00)", "try a smaller svi.lr"),
        ({"bsvi_k": -91.0}, "BSVI-k (-91.00) is below SVI-k (-89.00)", "a learned pi (bsvi-sir-pi)"),
        ({"nonfinite": 0.031}, "3.1% of the weights are not finite", "try a smaller svi.lr"),
        ({"moved": 250.0}, "exploding SVI steps: they move lambda by 250", "try a smaller svi.lr or svi.max_grad_norm"),
        ({"moved": math.inf}, "exploding SVI steps", "svi.max_grad_norm"),
        ({"moved": math.nan}, "exploding SVI steps", "svi.max_grad_norm"),
        ({"ess": 1.0}, "one draw carries the whole buffer (effective size 1.00 of 10.0)", "fewer svi.steps"),
        ({"active_units": 0}, "posterior collapse: 0 of 32 latents are active", "try KL annealing"),
        ({"kl_per_latent": 0.001}, "KL 0.0010 nats per latent", "anneal.start 0.1"),
    ],
)
def test_what_looks_wrong_is_one_line_with_what_to_try(changes, told, advice):
    (line,) = list_problems({**WELL, **changes})
    assert line.startswith("step 100: ") and told in line and advice in line and "\n" not in line


def test_small_differences_and_buffers_of_one_draw_are_no_reason_to_warn():
    assert list_problems({**WELL, "svi_k": -90.5, "bsvi_k": -91.0}) == []  # within 1 nat and 1%
    assert list_problems({**WELL, "svi_0": -2000.0, "svi_k": -2015.0, "bsvi_k": -2015.0}) == []
    assert list_problems({**WELL, "ess": 1.0, "ess_of_pi": 1.0}) == []  # vae, and svi, whose pi is the last draw's
    assert list_problems({**WELL, "active_units": 0, "beta": 0.3}) == []  # while annealing


class Noting(Watcher):
    def __init__(self):
        self.lines, self.said = [], []

    def train(self, line):
        self.lines.append(line)

    def say(self, line):
        self.said.append(line)


def test_a_real_collapse_is_seen():
    torch.manual_seed(0)

    class Decoder(torch.nn.Linear):
        def forward(self, x, z):
            return -(x - super().forward(z)).square().sum(-1)

    decoder = Decoder(2, 6)
    torch.nn.init.zeros_(decoder.weight)  # the decoder cannot see z, so the encoder gives it up
    decoder.weight.requires_grad_(False)
    model = bsvi.VAE(torch.nn.Linear(6, 4), decoder)
    watcher = Noting()
    bsvi.train(
        model,
        bsvi.objective("bsvi", k=2),
        batches(),
        settings=settings(steps=500, log_every=500, lr=0.003),
        watcher=watcher,
    )
    assert [line for line in watcher.said if "posterior collapse: 0 of 2 latents are active" in line]
    healthy, objective = make("bsvi")
    watcher = Noting()
    bsvi.train(healthy, objective, batches(), settings=settings(steps=500, log_every=500, lr=0.02), watcher=watcher)
    assert not [line for line in watcher.said if "collapse" in line]


def test_exploding_steps_are_seen():
    model, _ = make("bsvi")
    watcher = Noting()
    wild = bsvi.objective("bsvi", k=3, svi=bsvi.SVI(lr=1000.0, max_grad_norm=1.0))
    bsvi.train(model, wild, batches(), settings=settings(steps=4), watcher=watcher)
    assert [line for line in watcher.said if "exploding SVI steps" in line]
    assert [line for line in watcher.said if "SVI-k" in line and "is below SVI-0" in line]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("method", ["vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi"])
def test_the_meter_reads_what_the_definitions_say(method, samples):
    model, _ = make()
    objective = bsvi.objective(method, k=3, svi=bsvi.SVI(samples=samples))
    meter, expected = Meter(), torch.zeros(len(NAMES), dtype=torch.float64)
    for x, _ in batches(3):
        estimate = objective(model, x)
        meter.add(estimate, torch.tensor(2.0))
        t = estimate.trajectory
        each = t.per_proposal()
        r = responsibilities(t.log_w, estimate.log_pi)
        values = {
            "bound": estimate.bound.mean(),
            "svi_0": each[0].mean(),
            "svi_k": each[-1].mean(),
            "bsvi_k": (each.exp().mean(0)).log().mean(),
            "kl": t.kl[-1].mean(),
            "reconstruction": -t.log_lik[-1].mean(),
            "ess": (1 / r.square().sum(0)).mean(),
            "nonfinite": torch.tensor(0.0),
            "grad_norm": torch.tensor(2.0),
            "moved": (t.lambda_[-1] - t.lambda_[0]).norm(dim=-1).mean(),
        }
        expected += torch.stack([values[name].detach().double() for name in NAMES]) / 3
    line = meter.line(model, estimate)
    for name, value in zip(NAMES, expected.tolist(), strict=True):
        assert line[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    assert meter.steps == 0 and meter.sums is None
    assert line["latents"] == 2 and line["kl_per_latent"] == pytest.approx(estimate.trajectory.kl[-1].mean().item() / 2)
    most = {"vae": 1, "iwae": 4, "svi": samples}.get(method, 4 * samples)
    assert line["ess_of_pi"] == pytest.approx(most)
    assert line["buffer_weight_average"] == pytest.approx({"vae": 0.0, "svi": 1.0}.get(method, 0.5))


def test_long_lists_of_ids_are_cut():
    assert list_ids(torch.arange(3)) == "batch ids 0, 1, 2"
    assert list_ids(torch.arange(70)).endswith(", 59, ... (70)")
    assert list_ids(torch.arange(10, 14), torch.tensor([False, True, False, True])) == "batch ids 11, 13"
    assert (
        list_ids(None, torch.tensor([False, True])) == "rows of the batch 1" and list_ids(None) == "batch without ids"
    )
