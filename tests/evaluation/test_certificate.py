"""Further estimators beside BSVI-k, and the certificate: in Python, by the command, in scores.json.

Statistical limits are 6 standard errors (below 2e-9 each); the noise is fixed by the seed.
"""

import json
import shutil

import numpy as np
import pytest
import torch

import bsvi
from bsvi import cli
from bsvi.evaluation.budget import Budget
from bsvi.evaluation.certificate import certify
from bsvi.evaluation.scores import Scores
from bsvi.sweeps.jobs import is_scored
from tests.evaluation.oracle import batches, data
from tests.evaluation.test_side_by_side import COMMON
from tests.oracles import PPCA, mean_and_error

POOR = Budget(climb=1, samples=1, rounds=0, draws=1, chains=2, temperatures=6, leapfrog=2)


def sampler(model):
    W, b = model.W.detach(), model.b.detach()
    return lambda z: z @ W.T + b + model.sigma * torch.randn(len(z), len(W), dtype=z.dtype)


@pytest.mark.parametrize("exact_start", [True, False])
def test_the_certificate_brackets_ln_p_and_a_start_that_is_no_posterior_sample_would_be_seen(exact_start):
    model = PPCA(latent=4, visible=6)
    seen, sample = [], sampler(model)

    def draw(z):
        seen.append(sample(z if exact_start else z.flip(0)))
        return seen[-1]

    found = certify(model, data(model, 1), draw, images=200, budget=POOR)
    exact = model.exact_log_p(torch.cat(seen))
    low, low_error = mean_and_error(torch.from_numpy(found.columns["lower"]) - exact)
    high, high_error = mean_and_error(torch.from_numpy(found.columns["upper"]) - exact)
    assert low < -6 * low_error  # open, as the budget is poor
    assert (high > 6 * high_error) if exact_start else (high < -6 * high_error)
    assert found.gap.mean == pytest.approx(high - low)
    assert "nats too low" in str(found) and found.summary()["images"] == 200
    assert found.summary()["median"] == pytest.approx(np.median(found.columns["upper"] - found.columns["lower"]))


def test_a_certificate_goes_on_from_its_store_and_mistakes_are_one_line(tmp_path):
    model = PPCA()
    x, sample = data(model, 1), sampler(model)
    first = certify(model, x, sample, images=8, budget=POOR, batch_size=4, store=tmp_path / "store")
    again = certify(model, x, sample, images=8, budget=POOR, batch_size=4, store=tmp_path / "store")
    np.testing.assert_array_equal(first.columns["lower"], again.columns["lower"])
    for change, message in (({"images": 0}, "images must be"), ({"sample": lambda z: z[:1]}, "one x for each")):
        with pytest.raises(ValueError, match=message) as error:
            certify(model, x, **{"sample": sample, "images": 8, "budget": POOR} | change)
        assert "\n" not in str(error.value)


def test_evaluate_takes_further_estimators_and_keeps_them(tmp_path):
    model = PPCA(latent=3, visible=5)
    x = data(model, 12)
    asked = {"k": 10, "iwae": (), "estimators": ["refine-anneal"], "passes": 300}
    scores = bsvi.evaluate(model, batches(x, 6), store=tmp_path / "store.jsonl", **asked)
    alone = bsvi.refine_anneal(model, batches(x, 6), passes=300)
    found = scores.estimates["refine-anneal-300"]
    np.testing.assert_array_equal(found.per_example, alone.log_likelihood.per_example)
    plain = bsvi.evaluate(model, batches(x, 6), k=10, iwae=())
    np.testing.assert_array_equal(plain.log_likelihood.per_example, scores.log_likelihood.per_example)
    assert "estimates" not in plain.summary() and plain.estimates == {}
    scores.save(tmp_path)
    assert Scores.load(tmp_path).estimates["refine-anneal-300"].mean == found.mean
    model.calls = 0
    bsvi.evaluate(model, batches(x, 6), store=tmp_path / "store.jsonl", **asked)
    assert model.calls == 0
    for change, message in (({"estimators": ["magic"]}, "no estimator 'magic'"), ({"passes": 0}, "passes must be")):
        with pytest.raises(ValueError, match=message):
            bsvi.evaluate(model, batches(x, 6), **asked | change)
    with pytest.raises(ValueError, match="give a list"):
        bsvi.evaluate(model, iter(batches(x, 6)), **asked)


def evaluate(run, *more):
    words = ["evaluate", str(run), "--k", "2", "--examples", "6", "--iwae", "2", *COMMON, *more]
    return cli.main(words)


def entry(run):
    return json.loads((run / "scores.json").read_text())["test"]


def test_the_command_shows_all_estimators_with_cost_and_says_which_to_publish(run, capsys):
    assert evaluate(run, "--estimator", "refine-anneal", "--passes", "200", "--certify", "4") == 0
    said = capsys.readouterr().out
    assert "refine-anneal-200" in said and "passes an image" in said and "Publish refine-anneal-200" in said
    assert "on 4 images of the model's own the estimate is at most" in said
    kept = entry(run)["estimates"]["refine-anneal-200"]
    assert kept["images"] == 6 and 100 < kept["passes"] <= 200 and {"minus_bsvi", "diagnostics"} <= kept.keys()
    assert entry(run)["certificate"]["estimator"] == "refine-anneal-200"
    with np.load(run / "scores-test.npz") as arrays:
        assert arrays["refine_anneal_200"].mean() == pytest.approx(kept["mean"])
    assert evaluate(run, "--estimator", "refine-anneal", "--passes", "300") == 0  # the first one stays
    assert set(entry(run)["estimates"]) == {"refine-anneal-200", "refine-anneal-300"} and "certificate" in entry(run)
    k, images = entry(run)["k"], entry(run)["examples"]
    assert is_scored(run, k, images, estimates=["refine-anneal-200"])
    assert not is_scored(run, k, images, estimates=["refine-anneal-400"])  # a sweep would add it


def test_shares_of_the_command_give_the_numbers_of_one_process(run, trained):
    words = ("--estimator", "refine-anneal", "--passes", "200", "--batch-size", "3")
    for share in ("1/2", "2/2"):
        assert evaluate(run, *words, "--share", share) == 0
    assert len([*run.glob("refine-anneal-200-*.share-*")]) == 2
    assert evaluate(run, *words) == 0
    assert not [*run.glob("*.share-*")]
    shared = entry(run)["estimates"]["refine-anneal-200"]["mean"]
    other = shutil.copytree(trained, run.parent / "other")
    assert evaluate(other, *words) == 0
    assert entry(other)["estimates"]["refine-anneal-200"]["mean"] == pytest.approx(shared, abs=1e-5)


def test_wrong_flags_are_one_line(run, capsys):
    for words, message in ((("--passes", "10"), "--passes"), (("--certify", "-1"), "--certify")):
        assert evaluate(run, *words) != 0
        said = capsys.readouterr().err
        assert message in said and len(said.strip().splitlines()) == 1
