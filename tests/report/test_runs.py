"""Run folders are read as they are: whole, half written, broken or doubled; the report goes on and says so."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bsvi
from bsvi.report.curves import draw_progress
from bsvi.report.experiments import group_runs
from bsvi.report.run_tables import make_runs_table
from bsvi.report.runs import find_runs, read_runs
from bsvi.report.series import changes
from tests.report.made_runs import make_run, make_runs


def test_runs_are_found_at_any_depth_and_counted_once(tmp_path):
    folders = make_runs(tmp_path, ["vae", "bsvi"], (0, 1), steps=100)
    assert find_runs([tmp_path, tmp_path / "omniglot-small", folders[0]]) == sorted(folders)


def test_scores_are_read_with_their_examples(tmp_path):
    folder = make_run(tmp_path, "bsvi", 0, steps=100)
    (run,), warnings = read_runs([folder])
    test = run.scores["test"]
    assert run.state == "scored" and not warnings and not run.warnings
    assert test.mean("log_likelihood") == pytest.approx(test.values["log_likelihood"].mean())
    assert test.mean("iwae_2500") == pytest.approx(test.values["iwae_2500"].mean())
    assert test.particles == [500, 1000, 1500, 2000, 2500] and test.mean("nothing") is None
    assert run.per_step("decoder_calls") == 10 and run.per_step("seconds") == pytest.approx(0.095)


def test_the_pace_is_that_of_the_undisturbed_part_of_the_fastest_seed(tmp_path):
    for seed, factor in ((0, 5.0), (1, 1.0)):
        folder = make_run(tmp_path, "bsvi", seed, steps=1000)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            pause = 300.0 if line["step"] > 500 else 0.0  # in the middle
            line["seconds"] = line["step"] * 0.1 * factor + pause
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs, _ = read_runs([tmp_path])
    assert [run.pace for run in runs] == pytest.approx([0.5, 0.1])
    (experiment,) = group_runs(runs)
    assert experiment.rows[0].pace == pytest.approx(0.1)
    total_alone = replace(runs[0], train=[])
    assert total_alone.pace == pytest.approx(runs[0].per_step("seconds"))


def test_half_a_last_line_is_no_reason_to_worry_but_a_broken_one_before_is(tmp_path):
    folder = make_run(tmp_path, "svi", 0, steps=200, ended=False)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"split": "train", "st')
    (run,), _ = read_runs([tmp_path])
    assert run.state == "running" and run.steps == 200 and not run.warnings
    metrics.write_text("not json\n" + whole)
    (run,), _ = read_runs([tmp_path])
    assert run.steps == 200 and "1 of" in run.warnings[0].text


def test_a_run_that_no_longer_writes_is_called_stopped(tmp_path):
    folder = make_run(tmp_path, "svi", 0, steps=200, ended=False)
    os.utime(folder / "metrics.jsonl", (0, 0))
    assert read_runs([tmp_path])[0][0].state == "stopped"
    (folder / "metrics.jsonl").unlink()
    assert read_runs([tmp_path])[0][0].state == "no metrics yet"


def test_after_a_resume_the_later_line_of_a_step_counts(tmp_path):
    folder = make_run(tmp_path, "vae", 0, steps=40)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    again = json.loads(lines[0]) | {"bound": 123.0}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(again)]) + "\n")
    (run,), _ = read_runs([tmp_path])
    assert [line["step"] for line in run.train] == [20, 40] and run.train[0]["bound"] == 123.0


@pytest.mark.parametrize("file", ["config.json", "result.json", "scores.json", "scores-test.npz", "metrics.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff\xfe", b"[]", b"null"])
def test_a_broken_file_becomes_a_warning_and_never_a_crash(tmp_path, file, content):
    make_run(tmp_path, "vae", 0, steps=100)
    broken = make_run(tmp_path, "bsvi", 0, steps=100)
    (broken / file).write_bytes(content)
    runs, warnings = read_runs([tmp_path])
    experiments = group_runs(runs)
    assert any(run.method == "vae" for run in runs)
    if file != "metrics.jsonl" and content != b"null" and (file, content) != ("result.json", b"[]"):
        told = warnings + experiments[0].warnings
        assert file == "scores.json" or any(str(broken) in warned.where for warned in told)


def test_the_same_run_twice_counts_once_and_says_so(tmp_path):
    folder = make_run(tmp_path, "vae", 0, steps=100)
    shutil.copytree(folder, tmp_path / "copy")
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert len(experiment.runs) == 1 and "left out" in experiment.warnings[0].text


def test_other_settings_become_a_row_of_their_own_named_by_the_difference(tmp_path):
    make_runs(tmp_path / "a", ["vae", "bsvi"], (0, 1), steps=100)
    make_runs(tmp_path / "b", ["bsvi"], (0, 1), steps=100, config={"svi.lr": 0.1})
    make_runs(tmp_path / "c", ["bsvi"], (0,), steps=100, k=20)
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert [row.label for row in experiment.rows] == ["VAE", "BSVI-k", "BSVI-k (k = 20)", "BSVI-k (svi.lr = 0.1)"]
    assert [len(row.runs) for row in experiment.rows] == [2, 2, 1, 2]
    assert experiment.find_row("bsvi").variant == "" and experiment.find_row("iwae") is None


def test_numbers_that_do_not_belong_together_are_warned_about(tmp_path):
    one, other = make_runs(tmp_path, ["vae", "bsvi"], (0,), steps=100)
    config = json.loads((one / "config.json").read_text())
    config["data"]["sha256"] = "e" * 64
    (one / "config.json").write_text(json.dumps(config))
    scores = json.loads((other / "scores.json").read_text())
    scores["test"] |= {"k": 50, "checkpoint_step": 10, "warnings": ["the bound still rises with k"]}
    (other / "scores.json").write_text(json.dumps(scores))
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    told = " | ".join(warned.text for warned in experiment.warnings)
    for expected in ("2 different data sets", "steps k: 50, 500", "of step 10", "still rises"):
        assert expected in told


def test_values_that_are_no_numbers_are_no_numbers(tmp_path):
    folder = make_run(tmp_path, "vae", 0, steps=100)
    np.savez(folder / "scores-test.npz", ids=np.arange(3), log_likelihood=np.array(["a", "b", "c"]))
    (run,), _ = read_runs([tmp_path])
    assert run.scores["test"].values == {}


def test_scores_of_a_run_that_has_not_ended_are_warned_about(tmp_path):
    folder = make_run(tmp_path, "vae", 0, steps=100)
    (folder / "result.json").unlink()
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert "before its training had ended" in experiment.warnings[0].text


class Squares(torch.nn.Module):
    """A decoder of a user's own."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Bilinear(3, 2, 1)

    def forward(self, x, z):
        return -self.net(x, z).square().sum(-1)


def test_runs_of_a_users_own_model_are_shown(tmp_path):
    model = bsvi.VAE(torch.nn.Linear(3, 4), Squares())
    settings, folder = bsvi.Training(steps=4, log_every=2), tmp_path / "mine" / "first-try"
    bsvi.train(model, bsvi.objective("bsvi", k=2), [torch.ones(5, 3)], settings=settings, run=folder)
    (run,), warnings = read_runs([tmp_path])
    assert warnings == [] and not (folder / "config.json").exists()
    assert (run.own, run.experiment, run.method, run.state, run.steps) == (True, "mine", "first-try", "trained", 4)
    (experiment,) = group_runs([run])
    assert [row.label for row in experiment.rows] == ["first-try"]
    assert [cell.text for cell in make_runs_table(experiment).rows[0][:4]] == ["first-try", "–", "trained", "4"]


def test_an_own_run_takes_method_and_seed_from_its_place_and_settings_from_its_own_config(tmp_path):
    for seed in (3, 4):
        (make_run(tmp_path, "bsvi", seed, steps=100) / "config.json").unlink()
    other = make_run(tmp_path, "vae", 0, steps=100)
    (other / "config.json").write_text('{"width": 64, "comment": "mine"}')
    runs, warnings = read_runs([tmp_path])
    assert warnings == [] and [(run.method, run.seed) for run in runs] == [("bsvi", 3), ("bsvi", 4), ("vae", 0)]
    (experiment,) = group_runs(runs)
    assert [row.label for row in experiment.rows] == ["VAE (comment = mine, width = 64)", "BSVI-k"]


def test_own_runs_of_one_name_are_neither_pooled_nor_left_out(tmp_path):
    for place in ("a", "b"):
        folder = make_run(tmp_path / place, "vae", 0, steps=100)
        (folder / "config.json").unlink()
        folder.rename(folder.parent / "model")
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert [len(row.runs) for row in experiment.rows] == [1, 1] and experiment.warnings == []


def test_phases_keep_a_run_apart_and_stand_in_its_curve(tmp_path):
    make_runs(tmp_path, ["vae", "bsvi"], (0, 1), steps=100)
    folder = make_run(tmp_path / "more", "bsvi", 0, steps=100)
    config = json.loads((folder / "config.json").read_text())
    config["config"]["phases"] = "vae:60,bsvi:40"
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"phase": "vae" if line["step"] <= 60 else "bsvi"} for line in lines]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert [row.label for row in experiment.rows] == ["VAE", "BSVI-k", "BSVI-k (phases = vae:60,bsvi:40)"]
    assert [changes(row) for row in experiment.rows] == [[], [], [(60.0, "bsvi")]]
    drawn = draw_progress(experiment)
    assert "another method takes over" in drawn.caption
    texts = [[text.get_text() for text in axes.texts] for axes in drawn.figure.axes]
    assert texts == [[], [], ["BSVI-k"], []]


def test_the_origin_of_a_run_is_shown_and_keeps_it_apart(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "a", "bsvi", seed, steps=100)
    folder = make_run(tmp_path / "b", "bsvi", 2, steps=100)
    config = json.loads((folder / "config.json").read_text())
    origin = {"folder": "runs/digits/vae-seed0", "step": 500, "weights": "ab" * 32, "method": "vae", "how": "from"}
    (folder / "config.json").write_text(json.dumps(config | {"origin": origin}))
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert [row.label for row in experiment.rows] == ["BSVI-k", "BSVI-k (origin = from vae)"]
    table = make_runs_table(experiment)
    at = [column.name for column in table.columns].index("origin")
    assert [row[at].text for row in table.rows] == [
        "–",
        "–",
        "weights of runs/digits/vae-seed0, vae, step 500, sha256 abababababab",
    ]
    (folder / "config.json").write_text(json.dumps(config | {"origin": "elsewhere"}))
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert "origin" not in [column.name for column in make_runs_table(experiment).columns]
