"""Only runs that agree in all but the method and the seed are compared; the others are named, with what differs."""

import json

import pytest

from bsvi.report.claim_tables import describe_left_out, make_claims_table
from bsvi.report.claims import HOLDS, NOT_SHOWN, check_claims
from bsvi.report.experiments import group_runs
from bsvi.report.make import make_report
from bsvi.report.measures import measure_difference, measure_rows_difference
from bsvi.report.runs import read_runs
from bsvi.report.tables import make_differences_table, make_scores_table
from bsvi.tables.methods import RATES_LR
from tests.report.made_runs import make_run, make_runs

SVI_BEATS_VAE, BSVI_BEATS_SVI = "SVI-k′ beats the VAE", "BSVI-k beats SVI-k′"


def experiment_at(root):
    (experiment,) = group_runs(read_runs([root])[0])
    return experiment


def verdict_at(root, text):
    return {line.claim.text: line for line in check_claims(experiment_at(root))}[text]


def change(path, **fields):
    """Change fields of a JSON file; those of scores.json are its test split's."""
    content = json.loads(path.read_text())
    (content["test"] if path.name == "scores.json" else content).update(fields)
    path.write_text(json.dumps(content))


def other_updates(folder):
    change(folder / "result.json", steps=60, stopped="time")


def other_k(folder):
    change(folder / "scores.json", k=20)


def other_examples(folder):
    change(folder / "scores.json", examples=10)


def other_noise(folder):
    change(folder / "scores.json", seed=1)


def older_weights(folder):
    change(folder / "scores.json", checkpoint_step=40)


def other_data(folder):
    change(folder / "config.json", data={"name": "omniglot", "sha256": "e" * 64})


def never_ended(folder):
    (folder / "result.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:2]) + "\n")


UNLIKE = {
    other_updates: "updates = 60",
    other_k: "test k = 20",
    other_examples: "test examples = 10",
    other_noise: "test seed = 1",
    older_weights: "test weights = older ones",
    other_data: "data = eeeeeeee",
    never_ended: "updates = 40",
}


@pytest.mark.parametrize(("spoil", "named"), UNLIKE.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_unlike_runs_are_not_compared_and_are_named(tmp_path, spoil, named):
    make_runs(tmp_path, ["svi", "bsvi"], (0, 1, 2), steps=100)
    folders = make_runs(tmp_path, ["vae"], (0, 1, 2), steps=100)
    assert verdict_at(tmp_path, SVI_BEATS_VAE).verdict == HOLDS
    for folder in folders:
        spoil(folder)
    line, experiment = verdict_at(tmp_path, SVI_BEATS_VAE), experiment_at(tmp_path)
    assert line.verdict == NOT_SHOWN and line.interval is None
    assert f"VAE ({named})" in line.note
    assert f"VAE ({named}), 3 runs" in make_claims_table(experiment, check_claims(experiment)).notes[0]
    assert verdict_at(tmp_path, BSVI_BEATS_SVI).verdict == HOLDS and not experiment.find_row("bsvi").variant
    cells = {row[0].text: row for row in make_differences_table(experiment).rows}
    assert {cell.text for cell in cells[f"VAE ({named})"][2:]} == {"–"}  # minus SVI, minus BSVI


def test_runs_with_other_numbers_of_updates_are_no_claim_though_each_ended(tmp_path):
    make_runs(tmp_path, ["vae"], (0, 1, 2), steps=400)
    make_runs(tmp_path, ["svi"], (0, 1, 2), steps=100)
    line = verdict_at(tmp_path, SVI_BEATS_VAE)
    assert line.verdict == NOT_SHOWN and line.interval is None and "unlike the others" in line.note


def test_a_run_that_its_own_rule_stopped_early_is_compared(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1, 2), steps=100)
    for folder in make_runs(tmp_path, ["vae"], (0, 1, 2), steps=100):
        change(folder / "result.json", steps=60, stopped="early")
    assert verdict_at(tmp_path, SVI_BEATS_VAE).verdict == HOLDS and not describe_left_out(experiment_at(tmp_path))


def test_one_unlike_seed_is_left_out_and_the_others_stay(tmp_path):
    make_runs(tmp_path, ["svi", "vae"], (0, 1, 2, 3), steps=100)
    other_k(tmp_path / "omniglot-small" / "vae-seed2")
    line = verdict_at(tmp_path, SVI_BEATS_VAE)
    assert line.verdict == HOLDS and line.interval.seeds == 3
    (note,) = describe_left_out(experiment_at(tmp_path))
    assert "VAE (test k = 20), 1 run." in note


def test_claims_are_about_the_settings_in_which_most_methods_meet(tmp_path):
    make_runs(tmp_path / "compared", ["vae", "svi"], (0, 1, 2), steps=100)
    make_runs(tmp_path / "alone", ["bsvi"], range(8), steps=200)  # more runs, but nothing to compare them with
    assert verdict_at(tmp_path, SVI_BEATS_VAE).verdict == HOLDS
    assert [row.method for row in experiment_at(tmp_path).left_out] == ["bsvi"]


def test_two_settings_of_one_method_are_compared_and_two_methods_with_two_settings_are_not(tmp_path):
    make_runs(tmp_path / "a", ["vae", "bsvi"], (0, 1, 2), steps=100)
    make_runs(tmp_path / "b", ["bsvi"], (0, 1, 2), steps=100, config={"svi.lr": 0.1})
    vae, bsvi, other = experiment_at(tmp_path).rows
    assert measure_rows_difference(bsvi, other, "log_likelihood").interval is not None
    assert measure_rows_difference(vae, other, "log_likelihood").interval is None


def test_runs_from_before_a_setting_was_there_compare_with_those_at_its_default(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1, 2), steps=100, config={"e2e.rates_lr": RATES_LR, "e2e.steps": None})
    make_runs(tmp_path, ["vae"], (0, 1, 2), steps=100)
    assert verdict_at(tmp_path, SVI_BEATS_VAE).verdict == HOLDS
    make_runs(tmp_path, ["bsvi"], (0, 1, 2), steps=100, config={"e2e.steps": 2})
    assert [row.method for row in experiment_at(tmp_path).left_out] == ["bsvi"]


def test_in_equal_time_each_method_may_have_a_k_of_its_own(tmp_path):
    for method, k in (("vae", 9), ("svi", 5)):
        for folder in make_runs(tmp_path, [method], (0, 1, 2), steps=100, config={"seconds": 60.0}):
            change(folder / "config.json", k=k)
            change(folder / "result.json", stopped="seconds")
    assert not experiment_at(tmp_path).left_out


def test_the_best_in_bold_is_one_of_those_that_compare(tmp_path):
    make_runs(tmp_path / "a", ["vae", "svi"], (0, 1, 2), steps=100)
    make_runs(tmp_path / "b", ["bsvi"], (0, 1, 2), steps=400)
    bold = {row[0].text: row[2].bold for row in make_scores_table(experiment_at(tmp_path), "test").rows}
    assert bold == {"VAE": False, "SVI-k′": True, "BSVI-k (steps = 400)": False}


def test_training_scores_that_were_made_otherwise_are_not_mixed(tmp_path):
    make_runs(tmp_path, ["bsvi"], (0, 1, 2), steps=100)
    for folder in make_runs(tmp_path, ["bsvi-sir"], (0, 1, 2), steps=100):
        content = json.loads((folder / "scores.json").read_text())
        content["train"]["k"] = 200
        (folder / "scores.json").write_text(json.dumps(content))
    experiment = experiment_at(tmp_path)
    found = measure_difference(experiment, "log_likelihood", "bsvi", "bsvi-sir", "train")
    assert found.interval is None and "different k (200, 500)" in found.note
    assert measure_difference(experiment, "log_likelihood", "bsvi", "bsvi-sir").interval is not None


def test_means_of_different_data_are_not_compared_either(tmp_path):
    make_runs(tmp_path, ["svi"], (0, 1, 2), steps=100)
    for folder in make_runs(tmp_path, ["bsvi"], (0, 1, 2), steps=100):
        change(folder / "scores.json", data_sha256="f" * 64)
    found = measure_difference(experiment_at(tmp_path), "log_likelihood", "bsvi", "svi")
    assert found.interval is None and "different data" in found.note


def test_the_page_says_which_runs_were_left_out(tmp_path):
    make_runs(tmp_path / "runs", ["svi", "vae"], (0, 1, 2), steps=100)
    other_updates(make_run(tmp_path / "runs", "bsvi", 0, steps=100))
    page = make_report([tmp_path / "runs"], tmp_path / "out").read_text()
    assert "Left out, as they differ from the others in more than the method: BSVI-k (updates = 60), 1 run." in page
