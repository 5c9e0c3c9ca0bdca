"""Scores: means with errors and intervals, pairs, and files that read back the same."""

import dataclasses
import inspect
import json
import math

import numpy as np
import pytest
import scipy.stats

import bsvi
from bsvi.evaluation.per_example import PerExample, Score
from bsvi.evaluation.scores import Scores


def a_score(n=400, seed=0):
    return Score(np.random.default_rng(seed).standard_normal(n) * 3 - 50, np.arange(n))


def some_scores(n=30, **changes):
    rng = np.random.default_rng(1)
    names = ["log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo", "iwae_20", "iwae_100", "iwae_ess"]
    columns = {name: rng.standard_normal(n) for name in names}
    about = {"diagnostics": {"khat_above_0.7": {"bsvi": 0.1}}, "warnings": ("beware",), "seconds": 1.5}
    return Scores(k=20, seed=0, ids=np.arange(n), columns=columns | changes, **about)


def test_the_error_is_sd_over_root_n_and_the_interval_is_the_bootstraps():
    score = a_score()
    assert score.mean == score.per_example.mean()
    assert score.stderr == pytest.approx(score.per_example.std(ddof=1) / 20, rel=1e-12)
    theirs = scipy.stats.bootstrap((score.per_example,), np.mean, method="percentile", n_resamples=20_000, rng=1)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    # two bootstrap quantiles of 2,000 and 20,000 resamples: sd of their difference is 1.4% of the width; 6 of them
    assert abs(score.low - theirs.confidence_interval.low) < 0.085 * width
    assert abs(score.high - theirs.confidence_interval.high) < 0.085 * width


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_the_interval_of_few_examples_holds_the_mean_at_its_nominal_rate(n):
    rows, ids = np.random.default_rng(n).standard_normal((2000, n)) - 50, np.arange(n)
    scores = [Score(row, ids) for row in (rows if n < 8 else rows[:500])]
    share = np.mean([score.low <= -50 <= score.high for score in scores])
    # Student's interval covers 95% (the bootstrap's of 8 covers 94%): 5 standard errors of 0.005 (0.01)
    assert 0.925 <= share <= 0.975 if n < 8 else 0.89 <= share <= 0.99


def test_the_interval_of_few_examples_is_students():
    score = Score(np.array([1.0, 2.0, 4.0]), np.arange(3))
    theirs = scipy.stats.ttest_1samp(score.per_example, 0.0).confidence_interval(0.95)
    assert (score.low, score.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_the_interval_is_the_same_every_time_and_for_any_memory_limit(monkeypatch):
    first = (a_score().low, a_score().high)
    monkeypatch.setattr("bsvi.evaluation.per_example._AT_ONCE", 1000)
    assert (a_score().low, a_score().high) == pytest.approx(first, abs=1e-12)


def test_differences_are_taken_on_common_examples_in_pairs():
    a = Score(np.array([1.0, 2.0, 3.0]), np.array([1, 5, 9]))
    b = Score(np.array([10.0, 20.0, 30.0]), np.array([9, 7, 1]))
    difference = a - b
    assert difference.ids.tolist() == [1, 9]
    assert difference.per_example.tolist() == [1.0 - 30.0, 3.0 - 10.0]
    with pytest.raises(ValueError, match="no example in common"):
        a - Score(np.array([1.0]), np.array([2]))


def test_a_value_that_is_not_finite_is_shown_and_not_averaged_away():
    score = Score(np.array([-1.0, -math.inf]), np.arange(2))
    assert score.mean == -math.inf
    assert math.isnan(score.low) and math.isnan(score.stderr)
    assert score.summary() == {"mean": None, "stderr": None, "low": None, "high": None}


def test_scores_read_back_as_they_were_written(tmp_path):
    scores = some_scores(elbo=np.array([-math.inf, *range(29)], np.float64))
    scores.save(tmp_path, "test", data_sha256="abc", checkpoint_step=7)
    some_scores(n=10).save(tmp_path, "valid")
    back = Scores.load(tmp_path, "test")
    for name, column in scores.columns.items():
        np.testing.assert_array_equal(back.columns[name], column)
    assert back.ids.tolist() == scores.ids.tolist() and back.ids.dtype == np.int64
    assert (back.k, back.seed, back.warnings, back.seconds) == (20, 0, ("beware",), 1.5)
    assert list(back.iwae) == [20, 100]
    assert not list(tmp_path.glob(".*"))


def test_the_files_are_as_docs_run_folder_says(tmp_path):
    some_scores().save(tmp_path, "test", data_sha256="abc", checkpoint_step=7)
    entry = json.loads((tmp_path / "scores.json").read_text())["test"]
    assert {"k", "examples", "seed", "data_sha256", "seconds", "checkpoint_step", "diagnostics", "warnings"} <= set(
        entry
    )
    assert entry["examples"] == 30
    for name in ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo"):
        assert set(entry[name]) == {"mean", "stderr", "low", "high"}
    assert set(entry["iwae"]) == {"20", "100"} and set(entry["iwae"]["20"]) == {"mean", "stderr", "low", "high"}
    with np.load(tmp_path / "scores-test.npz") as file:
        assert {"ids", "log_likelihood", "iwae_20", "iwae_100"} <= set(file.files)


def test_missing_and_damaged_files_are_named_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="no scores of the split 'test'"):
        Scores.load(tmp_path)
    some_scores().save(tmp_path)
    whole = (tmp_path / "scores-test.npz").read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "scores-test.npz").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="damaged") as error:
            Scores.load(tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "scores.json").write_text("[1")
    with pytest.raises(ValueError, match="damaged"):
        Scores.load(tmp_path)


@pytest.mark.parametrize("name", ["evaluate", "amortization_gap", "refine", "ais", "refine_anneal", "certify"])
def test_every_estimator_returns_its_numbers_in_one_form(name):
    """ids, columns, warnings and seconds, all named; ``result["name"]`` is a Score."""
    made = inspect.signature(getattr(bsvi, name)).return_annotation
    assert issubclass(made, PerExample)
    assert all(field.kw_only for field in dataclasses.fields(made))
    assert {"ids", "columns", "warnings", "seconds"} <= {field.name for field in dataclasses.fields(made)}
