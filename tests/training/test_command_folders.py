"""``bsvi train`` into folders that are there: forks, other configurations, damaged and foreign files."""

import json
import re
import shutil
import signal

import pytest
from safetensors import safe_open

import bsvi
from bsvi.runs.folder import Run
from tests.training import faults
from tests.training.children import TINY, Child, ending, train_through, train_words
from tests.training.commands import in_process
from tests.training.small import batches, make, settings


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
    origin["only_longer"] = False  # it learns by another method
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
