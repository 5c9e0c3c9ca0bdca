"""An estimator is added from outside by a row, and a stream of noise by another: evaluations then have its numbers."""

import json
import math

import torch

import bsvi
from bsvi.tables.estimators import ESTIMATORS
from bsvi.tables.streams import STREAMS
from tests.drills.conftest import TINY, printed


def test_an_estimator_of_a_stranger_is_asked_for_by_a_flag_and_kept(plugin, bsvi_command, tmp_path):
    plugin(printed("An estimator"))
    bsvi_command("train digits --method vae --out run --quiet", TINY)
    words = "evaluate run --k 2 --iwae 2 --examples 5 --threads 1 --device cpu --compile off --quiet"
    assert "prior-300" in bsvi_command(words, "--estimator prior --passes 300")
    (entry,) = json.loads((tmp_path / "run/scores.json").read_text())["test"]["estimates"].values()
    assert entry["images"] == 5 and entry["passes"] == 300


def test_the_printed_estimator_is_right_where_the_likelihood_is_known(plugin, bsvi_command):
    """x = 0 given z is N(z, 1), z is N(0, 1): ln p(x) = ln N(0; 0, 2) in each of two dimensions."""
    plugin(printed("An estimator"))
    bsvi_command("data list")
    model = bsvi.VAE(torch.nn.Linear(3, 4), lambda x, z: torch.distributions.Normal(z, 1.0).log_prob(x[:, :2]).sum(-1))
    scores = bsvi.evaluate(model, torch.zeros(20, 3), k=2, iwae=(), estimators=["prior"], passes=2000)
    error = scores.estimates["prior-2000"].per_example - -math.log(4 * math.pi)
    # 6.9 standard errors: the weight's deviation is 0.58 of its mean, over 40,000 draws
    assert abs(error.mean()) < 0.02


def test_a_stream_of_noise_gives_draws_of_its_own(plugin, bsvi_command):
    plugin(printed("An estimator"))
    bsvi_command("data list")
    assert len({*STREAMS.values()}) == len(STREAMS) and "prior" in STREAMS and "prior" in ESTIMATORS
