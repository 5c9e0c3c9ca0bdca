"""``bsvi train`` as a command: what it leaves, exit codes, and errors in one line."""

import json
import re
import shutil
import signal

import torch

from bsvi.cli import main
from bsvi.runs.folder import Run
from tests.training import faults
from tests.training.children import Child, train_through, train_words
from tests.training.commands import in_process


def test_a_run_writes_all_that_it_promises(tmp_path):
    said = train_through(tmp_path / "run", "--method", "bsvi-pi")
    assert re.search(r"finished \(steps\): .*: 40 steps, best validation bound -\d+\.\d+ at step 40", said)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.json", "metrics.jsonl", "model.safetensors", "result.json", "log.txt"} <= names
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == [7, 14, 21, 28, 35, 40]
    assert [line["step"] for line in lines if line["split"] == "valid"] == [10, 20, 30, 40]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    promised = (
        "bound beta svi_0 svi_k bsvi_k kl reconstruction buffer_weight_average ess active_units nonfinite grad_norm lr"
    )
    assert {*promised.split(), "decoder_calls", "seconds"} <= lines[0].keys()
    assert lines[-1].keys() == {"split", "step", "seconds", "spent", "bound", "best"}


def test_the_resolved_configuration_is_there_before_the_first_step(tmp_path):
    (tmp_path / "c.toml").write_text("seed = 3\n[optim]\nlr = 0.002\n")
    words = [*train_words(tmp_path / "run"), "--config", str(tmp_path / "c.toml"), "--svi.momentum", "0.25"]
    child = Child(words, tmp_path / "run", faults.stop_in_first_step)
    assert child.wait() == -signal.SIGKILL
    about = json.loads((tmp_path / "run" / "config.json").read_text())
    assert about["config"]["optim"]["lr"] == 0.002 and about["config"]["svi"]["momentum"] == 0.25 and about["seed"] == 3
    assert about["config"]["steps"] == 40 and about["config"]["patience"] == 0  # defaults are resolved as well
    assert len(about["data"]["sha256"]) == 64 and about["device"] == "cpu" and about["threads"] == 1
    assert about["versions"].keys() >= {"bsvi", "torch", "python", "numpy", "safetensors"} and "git" in about
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_finished_run_prints_its_result_and_changes_nothing(tmp_path, reference, capsys):
    reference()
    shutil.copytree(reference.folder / "bsvi-sir-pi", tmp_path / "moved")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "moved").iterdir()}
    assert main(train_words(tmp_path / "moved", "--method", "bsvi-sir-pi")) == 0
    assert capsys.readouterr().out.startswith(f"finished before: {tmp_path / 'moved'}: 40 steps, best validation bound")
    assert main(["train", "--resume", str(tmp_path / "moved")]) == 0
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "moved").iterdir()}
    assert {path for path in before if before[path] != after[path]} <= {tmp_path / "moved" / "log.txt"}


def test_a_trained_run_has_pi_of_the_step_of_its_weights(reference):
    from bsvi.experiments.trained import load_trained
    from bsvi.runs.checkpoint import unpack

    reference()
    trained = load_trained(reference.folder / "bsvi-sir-pi", torch.device("cpu"))
    tensors, _ = unpack(Run(trained.folder).checkpoints()[0].read_bytes())
    for name, value in trained.objective.state_dict().items():
        assert torch.equal(value, tensors[f"best_objective.{name}"]) and value.any(), name
    reference("bsvi")
    assert load_trained(reference.folder / "bsvi", torch.device("cpu")).objective.state_dict() == {}


def test_wrong_words_are_one_line_and_exit_code_2(tmp_path, capsys):
    for words, told in {
        (): "name an experiment first",
        ("--seed", "1"): "name an experiment first",
        ("digit",): "unknown experiment 'digit'; did you mean 'digits'?",
        ("digits", "--svi.stepz", "3"): "unknown flag --svi.stepz; did you mean '--svi.steps'?",
        ("digits", "--optim.learning=3"): "unknown flag --optim.learning; did you mean '--optim.",
        ("digits", "--svi.steps", "0"): "steps Input should be greater than or equal to 1 (got 0)",
        ("digits", "--steps", "many"): "many",
        ("digits", "--method", "bvsi"): "unknown method 'bvsi'; did you mean 'bsvi'?",
        ("digits", "--seed"): "Missing value for argument '--seed'",
        ("digits", "extra"): "extra",
        ("digits", "--config"): "--config needs a TOML file",
        ("--resume",): "--resume needs a run folder",
    }.items():
        assert told in in_process(capsys, ["train", *words], 2), words


def test_errors_a_user_can_act_on_are_one_line_and_exit_code_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.toml").write_text("[svi]\nstepz = 3\n")
    for words, told in {
        ("--resume", str(tmp_path)): "holds no config.json; name a run folder",
        ("digits", "--config", str(tmp_path / "none.toml")): "cannot be read (No such file or directory)",
        ("digits", f"--config={tmp_path / 'bad.toml'}"): "unknown field svi.stepz; did you mean 'steps'?",
        ("digits", "--out", str(tmp_path / "file")): "cannot be used (File exists); choose another folder with --out",
        ("digits", "--out", str(tmp_path / "file" / "run")): "cannot be used (Not a directory)",
        ("digits", "--data.name", "no-such-set", "--out", str(tmp_path / "run")): "no data set 'no-such-set'",
        ("digits", "--device", "cuda", "--out", str(tmp_path / "run")): "device cuda was asked for",
        ("digits", "--logger", "wandb", "--out", str(tmp_path / "run")): "--logger wandb needs the extra",
        ("digits", "--fork", str(tmp_path / "run"), "--out", str(tmp_path / "no")): "has no checkpoint to fork from",
    }.items():
        if "cuda" in words and __import__("torch").cuda.is_available():
            continue
        assert told in in_process(capsys, ["train", *words]), words
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml", "file"]  # a failed start leaves nothing
