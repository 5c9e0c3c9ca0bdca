"""``bsvi train`` as a command: exit codes, one-line errors, resuming, forking, and the faults of the table in a small sample.

The whole table is in test_faults_*.py, behind ``./run python -m pytest -q -m slow tests/training``.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open

import bsvi
from bsvi.cli import main
from bsvi.runs.folder import Run
from tests.pace import slowness
from tests.training import faults
from tests.training.children import METHODS, TINY, Child, ending, train_through, train_words, whole_checkpoints
from tests.training.small import batches, make, settings
from tests.training.test_config import time_of_children


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The uninterrupted run of a method, made once."""
    base, known = tmp_path_factory.mktemp("reference"), {}

    def of(method="bsvi-sir-pi"):
        if method not in known:
            train_through(base / method, "--method", method)
            known[method] = ending(base / method)
        return known[method]

    of.folder = base
    return of


def failing(words, code=1):
    """Run a command that must fail with one line on standard error; returns the line."""
    done = subprocess.run([sys.executable, "-m", "bsvi", *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert done.stdout == "" and line.startswith("bsvi train: "), line
    return line


def in_process(capsys, words, code=1):
    """As failing, in this process."""
    try:
        got = main(words)
    except SystemExit as left:
        got = left.code
    said = capsys.readouterr()
    assert got == code, said.err
    (line,) = said.err.strip().splitlines()
    assert said.out == "" and "Traceback" not in line
    return line


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


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 0)])
def test_a_signal_saves_and_has_its_exit_code_and_the_run_resumes(tmp_path, reference, name, code):
    folder = tmp_path / "run"
    child = Child(
        train_words(folder, "--method", "bsvi-sir-pi", "--save-every", "1000"), folder, faults.slow_steps, 0.02
    )
    child.wait_until(lambda: (folder / "metrics.jsonl").exists())
    child.signal(getattr(signal, name))
    assert child.wait() == code
    assert re.search(rf"saved at step \d+ \({name}\); run the same command again", child.said())
    assert len(Run(folder).checkpoints()) == 1 and not list(folder.glob(".*"))
    shutil.move(folder, tmp_path / "moved")
    child = Child(["train", "--resume", str(tmp_path / "moved"), "--threads", "1", "--logger", "none"], folder)
    assert child.wait() == 0, child.said()
    assert ending(tmp_path / "moved") == reference()


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 0)])
def test_a_signal_at_start_up_has_its_exit_code_too(tmp_path, name, code):
    child = Child(train_words(tmp_path / "run"), tmp_path / "run", stall_in_start_up)
    child.wait_until(lambda: "stalled" in child.said())
    child.signal(getattr(signal, name))
    assert child.wait() == code, child.said()
    assert f"stopped by {name} before the first step; run the same command again" in child.said()
    assert not (tmp_path / "run").exists()


def stall_in_start_up():
    import bsvi.system.runtime

    bsvi.system.runtime.start = lambda runtime: (print("stalled", flush=True), time.sleep(60))


def test_a_second_signal_ends_at_once_without_damage(tmp_path, reference):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.slow_steps, 0.05, 0.001)
    child.wait_until(lambda: len(Run(folder).checkpoints()) == 2)
    child.process.terminate()
    time.sleep(0.02)  # longer than an echo
    start = time.monotonic()
    child.signal(signal.SIGINT)
    assert child.wait() in (-signal.SIGINT, 143)  # 143 where the step was over in between
    assert time.monotonic() - start < 5  # a step and its end would take as long as the whole run
    assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", "bsvi-sir-pi")
    assert ending(folder) == reference()


@pytest.mark.parametrize("method", METHODS)
def test_kills_at_any_time_change_nothing_in_the_end(tmp_path, reference, method):
    expected, folder = reference(method), tmp_path / "run"
    for seconds in (0.15, 0.25):
        Child(train_words(folder, "--method", method), folder).kill_after(seconds)
        assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", method)
    assert ending(folder) == expected


def test_kills_inside_a_save_leave_the_newest_checkpoint_whole(tmp_path, reference):
    folder = tmp_path / "run"
    for last, moment in ((9, "within"), (23, "before"), (31, "after"), (40, "within"), (52, "before"), (63, "after")):
        child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.kill_in_save, last, moment)
        assert child.wait() == -signal.SIGKILL
        assert whole_checkpoints(folder)[1] == []
    train_through(folder, "--method", "bsvi-sir-pi")
    assert ending(folder) == reference()


@pytest.mark.parametrize("limit", [0, 1500, 20_000])
def test_a_full_disk_stops_nothing(tmp_path, reference, limit):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-sir-pi"), folder, faults.full_disk, 3, 6, limit)
    assert child.wait() == 0, child.said()
    seen = json.loads(child.said().splitlines()[0])
    assert seen == {"failed": 3, "intact": 3, "temporaries": 0}
    assert ending(folder) == reference()


@pytest.mark.parametrize("site", ["data", "decoder", "gradient", "pi"])
def test_nan_stops_with_exit_code_3_step_tensor_and_ids(tmp_path, site):
    folder = tmp_path / "run"
    child = Child(train_words(folder, "--method", "bsvi-pi"), folder, faults.not_finite, site, math.nan, 9)
    assert child.wait() == 3
    (line,) = child.said().strip().splitlines()
    tensor = {"data": "x holds NaN", "decoder": "decoder's output", "gradient": "gradient of decoder", "pi": "logits"}[
        site
    ]
    assert line.startswith("bsvi train: step 9: ") and tensor in line and re.search(r"batch ids \d+", line), line
    assert line.removeprefix("bsvi train: ") in (folder / "log.txt").read_text()
    assert max(whole_checkpoints(folder)[0]) < 9 and not (folder / "result.json").exists()


def test_a_second_process_is_refused_within_a_second_with_pid_and_host(tmp_path):
    folder = tmp_path / "run"
    child = Child(train_words(folder), folder, faults.slow_steps, 0.2)
    child.wait_until(lambda: (folder / "config.json").exists())
    seconds = []
    for _ in range(3):
        start = time_of_children()
        line = failing(train_words(folder))
        seconds.append(time_of_children() - start)
    assert f"in use by process {child.process.pid} on {os.uname().nodename}; wait for it, stop it" in line
    assert min(seconds) < slowness(), seconds
    assert child.kill_after(0)
    assert Child(train_words(folder, "--time-limit", "0.01"), folder).wait() == 0  # the dead owner's lock is taken over


def test_of_many_simultaneous_starts_one_becomes_the_owner(tmp_path):
    folder = tmp_path / "run"
    at = time.time() + 1.0
    together = [
        Child(train_words(folder, "--time-limit", "3"), tmp_path / str(i), slow_after_meeting, at) for i in range(6)
    ]
    codes = [child.wait() for child in together]
    owner = codes.index(0)
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    for i, child in enumerate(together):
        assert i == owner or f"in use by process {together[owner].process.pid} on" in child.said(), child.said()


def slow_after_meeting(at):
    faults.slow_steps(0.2)
    faults.start_together(at)


def test_a_changed_configuration_is_refused_with_its_fields(tmp_path, reference, capsys):
    reference()
    folder = reference.folder / "bsvi-sir-pi"
    changes = ["--method", "bsvi-sir-pi", "--optim.lr", "0.5", "--svi.steps", "3"]
    line = in_process(capsys, train_words(folder, *changes))
    assert "(optim.lr: 0.001 -> 0.5; svi.steps: 2 -> 3); use the same flags, another --out, or --fork NEW" in line
    assert line == in_process(capsys, ["train", "--resume", str(folder), "--optim.lr", "0.5", "--svi.steps", "3"])


def test_fork_goes_on_from_a_run_in_a_new_folder(tmp_path, reference):
    reference("bsvi")
    source = reference.folder / "bsvi"
    before = {path: path.read_bytes() for path in source.iterdir()}
    words = ["--method", "bsvi", "--steps", "60", "--optim.lr", "0.002", "--fork", str(tmp_path / "fork")]
    child = Child(train_words(source, *words), tmp_path / "first", faults.kill_in_save, 60, "before")
    assert child.wait() == -signal.SIGKILL
    for _ in range(2):  # the same command resumes the fork, then finds it finished
        child = Child(train_words(source, *words), tmp_path / "again")
        assert child.wait() == 0, child.said()
    assert "finished before" in child.said()
    assert before == {path: path.read_bytes() for path in source.iterdir()}
    lines = [json.loads(line) for line in (tmp_path / "fork" / "metrics.jsonl").read_text().splitlines()]
    theirs = [json.loads(line) for line in (source / "metrics.jsonl").read_text().splitlines()]
    assert lines[: len(theirs)] == theirs and lines[-1]["step"] == 60
    assert [line["lr"] for line in lines if line["split"] == "train"] == [0.001] * 6 + [0.002] * 4
    assert json.loads((tmp_path / "fork" / "config.json").read_text())["config"]["steps"] == 60


def test_a_fork_into_other_networks_is_refused_with_the_keys(tmp_path, reference):
    reference("bsvi")
    words = ["--method", "bsvi", "--net.hidden", "17", "--fork", str(tmp_path / "fork")]
    child = Child(train_words(reference.folder / "bsvi", *words), tmp_path / "fork")
    assert child.wait() == 1
    (line,) = child.said().strip().splitlines()
    assert "does not fit this model" in line and "(16,) float32, not (17,) float32" in line
    child = Child(train_words(tmp_path / "none", "--fork", str(tmp_path / "other")), tmp_path / "other")
    assert child.wait() == 1 and "none has no checkpoint to fork from" in child.said()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_a_fork_says_where_it_comes_from(tmp_path, reference):
    from bsvi.runs.checkpoint import digest, unpack
    from bsvi.training.state import select_prefix

    reference("bsvi")
    source = reference.folder / "bsvi"
    tensors, _ = unpack(Run(source).checkpoints()[0].read_bytes())
    train_through(source, "--method", "bsvi-sir", "--steps", "44", "--fork", str(tmp_path / "fork"))
    weights = digest(select_prefix(tensors, "model."))
    origin = {"folder": str(source), "step": 40, "weights": weights, "method": "bsvi", "how": "fork"}
    assert json.loads((tmp_path / "fork" / "config.json").read_text())["origin"] == origin
    with safe_open(tmp_path / "fork" / "model.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["bsvi"])["origin"] == origin
    assert "origin" not in json.loads((source / "config.json").read_text())
    (tmp_path / "fork" / "result.json").unlink()  # it goes on without another word of where it came from
    shutil.move(tmp_path / "fork", tmp_path / "moved")
    assert Child(["train", "--resume", str(tmp_path / "moved"), *TINY.split()[-9:]], tmp_path / "again").wait() == 0
    assert json.loads((tmp_path / "moved" / "config.json").read_text())["origin"] == origin


@pytest.mark.parametrize("kept", ["state-*.ckpt", "result.json", "model.safetensors", "metrics.jsonl", "*"])
def test_a_folder_of_another_run_without_its_config_is_refused_and_left_as_it_is(tmp_path, reference, capsys, kept):
    reference("bsvi")
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (reference.folder / "bsvi").glob(kept):
        if path.name not in ("config.json", "lock"):
            shutil.copy(path, folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        line = in_process(capsys, train_words(folder, "--method", "bsvi-sir"))
        assert "belongs to another run" in line or "but no config.json, so whose it is cannot be told" in line
        assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_of_a_models_own_run_is_not_taken_for_that_of_an_experiment(tmp_path, capsys):
    model, objective = make("bsvi")
    bsvi.train(model, objective, batches(), settings=settings(steps=2), run=tmp_path / "mine")
    before = {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert "no config.json" in in_process(capsys, train_words(tmp_path / "mine"))
    assert before == {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()}


def test_a_run_whose_config_was_lost_goes_on_if_its_checkpoints_say_that_it_is_the_same(tmp_path, reference):
    expected, folder = reference(), tmp_path / "run"
    shutil.copytree(reference.folder / "bsvi-sir-pi", folder)
    (folder / "config.json").unlink()
    train_through(folder, "--method", "bsvi-sir-pi")
    assert ending(folder) == expected and (folder / "config.json").exists()


def test_damaged_files_of_a_run_are_one_line_each(tmp_path, reference, capsys):
    reference()
    folder = tmp_path / "run"
    shutil.copytree(reference.folder / "bsvi-sir-pi", folder)
    words = train_words(folder, "--method", "bsvi-sir-pi")
    (folder / "result.json").unlink()
    about = (folder / "config.json").read_text()
    for text in ("", "{}", '{"config": 1, "versions": {}, "data": {}}', '{"config": {}, "versions": [], "data": 0}'):
        (folder / "config.json").write_text(text)
        assert "config.json is damaged" in in_process(capsys, words)
    (folder / "config.json").write_text(about.replace('"bsvi": "', '"bsvi": "9.'))
    assert re.search(
        r"was started by bsvi 9\.\S+, this is \S+; use that version, or --fork NEW", in_process(capsys, words)
    )
    (folder / "config.json").write_text(about.replace('"sha256": "', '"sha256": "0'))
    assert "the data have changed since" in in_process(capsys, words)
    (folder / "config.json").unlink()  # the checkpoints still know what they belong to
    line = in_process(capsys, [*words, "--optim.lr", "0.3"])
    assert "belongs to another run (optim.lr: 0.001 -> 0.3)" in line
    (folder / "config.json").write_text(about)
    for path in Run(folder).checkpoints():
        path.write_bytes(b"no checkpoint")
    assert "can be used (state-00000040.ckpt: not a bsvi checkpoint; state-" in in_process(capsys, words)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path, reference):
    expected, folder = reference(), tmp_path / "run"
    shutil.copytree(reference.folder / "bsvi-sir-pi", folder)
    (folder / "result.json").unlink()
    newest, previous = Run(folder).checkpoints()
    newest.write_bytes(newest.read_bytes()[:-100])
    child = Child([word for word in train_words(folder, "--method", "bsvi-sir-pi") if word != "--quiet"], folder)
    assert child.wait() == 0
    assert f"warning: {newest.name} is not used: its SHA-256 does not match: damaged or cut off" in child.said()
    assert f"resumed at step {int(previous.stem[6:])}" in child.said()
    assert newest.name in (folder / "log.txt").read_text()
    assert ending(folder) == expected


def test_a_run_resumed_with_other_threads_is_warned_that_bits_can_differ(tmp_path):
    folder = tmp_path / "run"
    assert Child(train_words(folder, "--steps", "4", "--time-limit", "1e-9"), folder).wait() == 0
    words = [word for word in train_words(folder, "--steps", "4", "--threads", "2") if word != "--quiet"]
    child = Child(words, folder)
    assert child.wait() == 0
    assert "resumed with threads: 1 -> 2: the result will not be bitwise" in child.said()


def test_a_reader_that_goes_away_does_not_stop_the_run(tmp_path):
    words = [word for word in train_words(tmp_path / "run") if word != "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "bsvi", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=100) == 0
    assert (tmp_path / "run" / "result.json").exists()


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
