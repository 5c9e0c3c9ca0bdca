"""Claims are judged by what was put into the runs: held, contradicted, or not shown, and never by one seed."""

import json
import math

import numpy as np
import pytest

from bsvi.report.claims import CLAIMS, CONTRADICTED, HOLDS, NOT_SHOWN, check_claims, reach_verdict
from bsvi.report.experiments import group_runs
from bsvi.report.intervals import Interval
from bsvi.report.measures import measure_difference
from bsvi.report.runs import read_runs
from tests.report.made_runs import METHODS, make_run, make_runs


def experiment_at(root):
    (experiment,) = group_runs(read_runs([root])[0])
    return experiment


def judged(experiment):
    return {line.claim.text: line for line in check_claims(experiment)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    make_runs(root, steps=400)
    return experiment_at(root)


def test_claims_that_were_built_in_hold(whole):
    lines = judged(whole)
    assert len(lines) == len(CLAIMS) == 18
    for text, line in lines.items():
        expected = NOT_SHOWN if text.startswith("SIR regularises") else HOLDS  # the made scores overfit alike
        assert line.verdict == expected, (text, line)


def test_a_paired_difference_is_the_one_that_was_put_in(whole):
    measured = measure_difference(whole, "log_likelihood", "bsvi", "svi")
    assert measured.interval.seeds == 4 and measured.interval.examples == 60
    assert measured.interval.low < 1.5 < measured.interval.high  # levels 2.5 and 1.0
    assert measured.interval.high - measured.interval.low < 0.5  # though images differ by 8 nats


def test_the_papers_own_difference_stands_beside(whole):
    lines = judged(whole)
    assert lines["BSVI-k beats SVI-k′"].paper == "+0.67"
    assert lines["SIR regularises: BSVI-k overfits more than BSVI-k-SIR"].paper == "+0.31"
    assert lines["BSVI-500 is at least as tight as IWAE-2500"].paper == "+0.02"


def test_a_claim_is_contradicted_when_the_runs_say_the_opposite(tmp_path):
    make_runs(tmp_path, ["svi"], steps=100, level=3.0)
    make_runs(tmp_path, ["bsvi"], steps=100, level=1.0)
    assert judged(experiment_at(tmp_path))["BSVI-k beats SVI-k′"].verdict == CONTRADICTED


def test_close_needs_the_interval_within_the_margin(tmp_path):
    make_runs(tmp_path, ["bsvi"], steps=100, seed_spread=0.01)
    make_runs(tmp_path, ["bsvi-ds"], steps=100, level=3.5, seed_spread=0.01)
    make_runs(tmp_path, ["bsvi-pi"], steps=100, seed_spread=1.5)
    lines = judged(experiment_at(tmp_path))
    assert lines["Double sampling makes little difference"].verdict == CONTRADICTED  # 1 nat of 90
    assert lines["Learning π makes little difference"].verdict == NOT_SHOWN  # seeds too far apart to tell


def test_one_seed_shows_nothing_and_says_why(tmp_path):
    make_runs(tmp_path, METHODS, (0,), steps=200)
    lines = check_claims(experiment_at(tmp_path))
    assert {line.verdict for line in lines} == {NOT_SHOWN}
    assert all("one seed" in line.note for line in lines)


def test_missing_methods_are_named(tmp_path):
    make_runs(tmp_path, ["vae", "bsvi"], (0, 1), steps=100)
    lines = judged(experiment_at(tmp_path))
    assert "needs runs of SVI-k′" in lines["BSVI-k beats SVI-k′"].note
    assert lines["BSVI-k-SIR takes the same time per step as SVI-k′ (within 10%)"].interval is None


def test_seeds_are_paired_by_number_and_examples_by_id(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1, 2), steps=100)
    folders = make_runs(tmp_path, ["bsvi"], (1, 2, 3), steps=100)
    for folder in folders:  # the same scores in another order, and only some of them
        with np.load(folder / "scores-test.npz") as stored:
            arrays = dict(stored)
        order = np.random.default_rng(0).permutation(60)[:40]
        np.savez(folder / "scores-test.npz", **{name: values[order] for name, values in arrays.items()})
    measured = measure_difference(experiment_at(tmp_path), "log_likelihood", "bsvi", "svi").interval
    assert (measured.seeds, measured.examples) == (2, 40)
    assert 1.0 < measured.mean < 2.0


def test_without_values_per_example_seeds_alone_are_compared(tmp_path):
    for folder in make_runs(tmp_path, ["svi", "bsvi"], steps=100):
        (folder / "scores-test.npz").unlink()
    measured = measure_difference(experiment_at(tmp_path), "log_likelihood", "bsvi", "svi")
    assert measured.interval.examples == 0 and "over seeds alone" in measured.note


def test_scores_of_other_data_are_not_paired(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1), steps=100)
    for folder in make_runs(tmp_path, ["bsvi"], (0, 1), steps=100):
        scores = json.loads((folder / "scores.json").read_text())
        scores["test"]["data_sha256"] = "f" * 64
        (folder / "scores.json").write_text(json.dumps(scores))
    assert "different data" in measure_difference(experiment_at(tmp_path), "log_likelihood", "bsvi", "svi").note


def test_values_that_are_not_finite_show_nothing(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1), steps=100)
    folder = make_runs(tmp_path, ["bsvi"], (0, 1), steps=100)[0]
    with np.load(folder / "scores-test.npz") as stored:
        arrays = dict(stored)
    arrays["log_likelihood"][3] = -np.inf
    np.savez(folder / "scores-test.npz", **arrays)
    lines = judged(experiment_at(tmp_path))
    for text in ("BSVI-k beats SVI-k′", "BSVI-500 is at least as tight as IWAE-2500"):
        assert lines[text].verdict == NOT_SHOWN and "not finite" in lines[text].note


def test_overfitting_is_read_from_the_curves_when_training_scores_are_missing(tmp_path):
    make_runs(tmp_path, ["bsvi", "bsvi-sir"], steps=2000, scores=("test",))
    line = judged(experiment_at(tmp_path))["SIR regularises: BSVI-k overfits more than BSVI-k-SIR"]
    assert line.verdict == HOLDS and "curves" in line.note  # the made curves overfit by 3.0 + 1.6 against 1.4


def test_training_below_beta_one_is_no_evidence(tmp_path):
    folder = make_run(tmp_path, "bsvi", 0, steps=200)
    lines = [json.loads(line) | {"beta": 0.5} for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert judged(experiment_at(tmp_path))["In training BSVI-k is at least SVI-k"].interval is None


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("greater", 0.01, 1, HOLDS),
        ("greater", -0.01, 1, NOT_SHOWN),
        ("greater", -1, -0.01, CONTRADICTED),
        ("at least", -0.09, 0.5, HOLDS),
        ("at least", -0.11, 0.5, NOT_SHOWN),
        ("at least", -1, -0.11, CONTRADICTED),
        ("close", -0.09, 0.09, HOLDS),
        ("close", -0.09, 0.11, NOT_SHOWN),
        ("close", 0.11, 0.5, CONTRADICTED),
        ("close", -0.5, -0.11, CONTRADICTED),
        ("greater", math.nan, math.nan, NOT_SHOWN),
    ],
)
def test_the_verdict_follows_the_whole_interval(kind, low, high, expected):
    assert reach_verdict(kind, Interval(float(low + high) / 2, float(low), float(high), seeds=4), 0.1) == expected
    assert reach_verdict(kind, Interval(float(low + high) / 2, float(low), float(high), seeds=1), 0.1) == NOT_SHOWN


def test_tightness_without_its_own_estimators_is_not_shown(tmp_path):
    folders = make_runs(tmp_path, ["bsvi"], (0, 1, 2), steps=100)
    text = "BSVI-500 is at least as tight as IWAE-2500"
    assert judged(experiment_at(tmp_path))[text].verdict == HOLDS
    for folder in folders:  # IWAE-2000 is there, IWAE-2500 is not
        with np.load(folder / "scores-test.npz") as stored:
            arrays = {name: stored[name] for name in stored.files if name != "iwae_2500"}
        np.savez(folder / "scores-test.npz", **arrays)
        scores = json.loads((folder / "scores.json").read_text())
        del scores["test"]["iwae"]["2500"]
        (folder / "scores.json").write_text(json.dumps(scores))
    line = judged(experiment_at(tmp_path))[text]
    assert line.verdict == NOT_SHOWN and line.interval is None and "IWAE-2500" in line.note


def test_tightness_of_another_k_is_not_shown(tmp_path):
    for folder in make_runs(tmp_path, ["bsvi"], (0, 1, 2), steps=100):
        scores = json.loads((folder / "scores.json").read_text())
        scores["test"]["k"] = 20
        (folder / "scores.json").write_text(json.dumps(scores))
    line = judged(experiment_at(tmp_path))["BSVI-500 is at least as tight as IWAE-2500"]
    assert line.verdict == NOT_SHOWN and line.interval is None and "BSVI-500" in line.note


def test_two_seeds_show_nothing_and_say_why(tmp_path):
    make_runs(tmp_path, METHODS, (0, 1), steps=200)
    lines = check_claims(experiment_at(tmp_path))
    assert {line.verdict for line in lines} == {NOT_SHOWN}
    assert all("two seeds, where a claim needs 3" in line.note for line in lines)
