"""Phases: several methods in turn in one run, with exact resume."""

import json

import pytest
import safetensors.torch
import torch

import bsvi
from bsvi.cli import main
from bsvi.experiments.changes import update_experiment
from bsvi.experiments.config import EXPERIMENTS
from bsvi.experiments.trained import load_trained
from bsvi.runs.folder import Run
from bsvi.training.loop import Watcher
from bsvi.training.phases import Phase
from tests.training.children import TINY, ending
from tests.training.commands import in_process
from tests.training.small import VALID, batches, make, settings, state_of

STEPS = 15


def phases(*named):
    """Objectives in turn: ('vae', 6), ('bsvi-sir', 5) are updates 1 to 6 and 7 to 11."""
    found, last = [], 0
    for name, steps in named or (("bsvi-pi", 6), ("vae", 5), ("bsvi-sir-pi", 4)):
        last += steps
        found.append(Phase(name, bsvi.objective(name, k=2), last))
    return found


class Killed(Watcher):
    """Ends the run after an update, without a word."""

    def __init__(self, at):
        self.at = at

    def step(self, step):
        if step == self.at:
            raise InterruptedError


def run(folder, at=0):
    model, _ = make()  # which seeds
    made = settings(steps=STEPS, save_every=1e-9, valid_every=4)
    return bsvi.train(model, phases(), batches(), VALID, made, folder, watcher=Killed(at)), model


def test_a_run_with_phases_that_is_killed_around_a_change_goes_on_bitwise(tmp_path):
    result, model = run(tmp_path / "whole")
    assert result.stopped == "steps" and result.best_step > 11  # bounds of another method do not compare
    whole = state_of(tmp_path / "whole")
    for at in (1, 5, 6, 7, 11, 12):
        with pytest.raises(InterruptedError):
            run(tmp_path / str(at), at)
        resumed, again = run(tmp_path / str(at))
        assert state_of(tmp_path / str(at)) == whole and resumed.best_step == result.best_step
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_lines_name_their_phase_and_none_mixes_two(tmp_path):
    run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = {
        split: [(line["step"], line["phase"]) for line in lines if line["split"] == split]
        for split in ("train", "valid")
    }
    names = {step: "bsvi-pi" if step <= 6 else "vae" if step <= 11 else "bsvi-sir-pi" for step in range(1, STEPS + 1)}
    assert told["train"] == [(step, names[step]) for step in (4, 6, 8, 11, 12, 15)]
    assert told["valid"] == [(step, names[step]) for step in (4, 6, 8, 11, 12, 15)]
    calls = [line["decoder_calls"] for line in lines if line["split"] == "train"]
    assert calls == [12, 18, 20, 23, 27, 39]  # 3 an update, then 1, then 4


def test_a_phase_of_the_same_method_changes_nothing():
    """So weights, moments, beta, batches and noise go on."""
    made = settings(steps=11, beta_start=0.5, beta_steps=9)
    one = make("bsvi-sir")
    bsvi.train(*one, batches(), None, made)
    two = make("bsvi-sir")  # which seeds
    bsvi.train(two[0], phases(("bsvi-sir", 6), ("bsvi-sir", 5)), batches(), None, made)
    assert all(torch.equal(a, b) for a, b in zip(one[0].parameters(), two[0].parameters(), strict=True))


def test_early_stopping_is_of_the_last_phase():
    made = settings(steps=15, valid_every=1, patience=1, lr=1e-30)  # no bound is ever better than the first
    model, _ = make()
    model.encoder[1].momentum = 0.0  # BatchNorm's
    result = bsvi.train(model, phases(), batches(), VALID, made)
    assert (result.stopped, result.steps, result.best_step) == ("early", 13, 12)


def test_phases_must_end_with_the_run():
    for bad in ([], phases(("vae", 6)), phases(("vae", 20))):
        with pytest.raises(ValueError, match=r"the last at settings.steps = 15, got \["):
            bsvi.train(make()[0], bad, batches(), None, settings(steps=15))


def test_the_command_takes_phases_and_its_run_resumes_evaluates_and_names_them(tmp_path, capsys):
    words = ["train", *TINY.replace("--steps 40 ", "").split(), "--out", str(tmp_path / "run")]
    line = in_process(capsys, [*words, "--phases", "vae:20,bvsi:20"], 2)
    assert "phases takes METHOD:UPDATES with commas" in line and "got 'bvsi:20'" in line
    assert "leave --method and --steps out" in in_process(capsys, [*words, "--phases", "vae:2", "--steps", "3"], 2)
    words += ["--phases", "bsvi-pi:20,bsvi-sir:20"]
    assert main([*words, "--time-limit", "1e-9"]) == 0 and "saved at step 1" in capsys.readouterr().out
    assert main(words) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["method"] == "bsvi-sir" and config["config"]["steps"] == 40
    assert main([*words[:-4], "--out", str(tmp_path / "whole"), *words[-2:]]) == 0
    assert ending(tmp_path / "run") == ending(tmp_path / "whole")
    trained = load_trained(tmp_path / "run", torch.device("cpu"))
    assert trained.experiment.phases == "bsvi-pi:20,bsvi-sir:20" and trained.step > 20
    capsys.readouterr()
    line = in_process(capsys, [*words[:-1], "vae:20,bsvi-sir:30"])
    assert "phases: bsvi-pi:20,bsvi-sir:20 -> vae:20,bsvi-sir:30" in line


def test_a_model_that_is_shared_before_the_last_phase_has_no_pi_of_another_method(tmp_path):
    with pytest.raises(InterruptedError):
        run(tmp_path / "run", at=7)
    assert Run(tmp_path / "run").checkpoints()
    assert not [n for n in safetensors.torch.load_file(tmp_path / "run" / "model.safetensors") if "objective." in n]


def test_a_configuration_that_an_older_version_wrote_has_no_phases():
    old = EXPERIMENTS["digits"].model_dump(mode="json")
    del old["phases"]
    assert update_experiment(EXPERIMENTS["digits"], old, "old").phases is None
