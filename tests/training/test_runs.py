"""The run folder: one owner, no lost line, the previous checkpoint kept, and nothing overwritten that may be rescued."""

import json
import os
import resource
import socket
import subprocess
import sys

import pytest
import torch

import bsvi.runs.folder
from bsvi.runs.folder import Run, RunError
from bsvi.training.loop import Watcher as Watching
from bsvi.training.state import Misfit
from tests.training.hostile import hostile_files
from tests.training.small import VALID, batches, make, settings


def save(run, step, value=0.0):
    return run.save(step, {"a": torch.full((3,), value)}, {})


def steps(run):
    return [bsvi.runs.folder.parse_step(path) for path in run.checkpoints()]


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_folder_has_one_owner_who_is_named(tmp_path):
    owner = f"in use by process {os.getpid()} on {socket.gethostname()}; wait"
    with Run(tmp_path / "run"), pytest.raises(RunError, match=owner):
        Run(tmp_path / "run").__enter__()
    with Run(tmp_path / "run"):
        pass


def test_a_dead_owners_lock_is_taken_over(tmp_path):
    code = f"import os, bsvi.runs.folder; bsvi.runs.folder.Run({str(tmp_path)!r}).__enter__(); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert json.loads((tmp_path / "lock").read_text())["host"] == socket.gethostname()  # its name is still there
    with Run(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / "lock").read_bytes() == b""


def test_an_owner_that_wrote_nonsense_is_still_an_owner(tmp_path):
    with Run(tmp_path):
        for text in ("", "[]", "{}", "\0"):
            (tmp_path / "lock").write_text(text)
            with pytest.raises(RunError, match="in use by another process"):
                Run(tmp_path).__enter__()


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    (tmp_path / ".state-00000009.ckpt.123.tmp").write_bytes(b"half")
    with Run(tmp_path):
        assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be used \(.*\); choose another folder with --out"):
        Run(tmp_path / place).__enter__()


def test_two_checkpoints_are_kept(tmp_path):
    with Run(tmp_path) as run:
        for step in (1, 5, 30, 100_000_000):
            assert save(run, step)
        assert steps(run) == [100_000_000, 30]


def test_after_falling_back_the_previous_whole_checkpoint_is_still_kept(tmp_path):
    with Run(tmp_path) as run:
        save(run, 10, 1.0)
        save(run, 20, 2.0)
    (tmp_path / "state-00000020.ckpt").write_bytes(b"damaged")
    with Run(tmp_path) as run:
        assert run.load()[1]["step"] == 10
        save(run, 15, 1.5)
        assert steps(run) == [15, 10]  # not the damaged one
    (tmp_path / "state-00000015.ckpt").write_bytes(b"damaged as well")
    assert Run(tmp_path).find()[1]["step"] == 10


def test_where_no_checkpoint_can_be_used_nothing_is_overwritten(tmp_path):
    with Run(tmp_path) as run:
        run.log({"step": 1})
        save(run, 10)
        save(run, 20)
    for path in run.checkpoints():
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"}
    with (
        Run(tmp_path) as run,
        pytest.raises(RunError, match=r"no checkpoint .* can be used \(state-00000020.ckpt: its SHA"),
    ):
        run.load()
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"}


def test_lines_of_steps_that_are_taken_again_are_cut_off(tmp_path):
    with Run(tmp_path) as run:
        run.log({"step": 1})
        save(run, 1)
        run.log({"step": 2})
        run.log({"step": 3})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "bou')  # a kill in the middle of a line
    with Run(tmp_path) as run:
        run.load()
        assert lines(tmp_path) == [{"step": 1}]
        run.log({"step": 2, "again": True})
    assert lines(tmp_path) == [{"step": 1}, {"step": 2, "again": True}]


def test_without_a_checkpoint_the_lines_begin_anew(tmp_path):
    with Run(tmp_path) as run:
        run.log({"step": 1})
    with Run(tmp_path) as run:
        assert run.load() is None
        run.log({"step": 1, "again": True})
    assert lines(tmp_path) == [{"step": 1, "again": True}]


def test_where_metrics_are_shorter_the_checkpoint_that_fits_them_is_used(tmp_path):
    with Run(tmp_path) as run:
        for step in (1, 2):
            run.log({"step": step})
            save(run, step)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st')
    with Run(tmp_path) as run:
        assert run.load()[1]["step"] == 1
        assert "state-00000002.ckpt is not used: metrics.jsonl is shorter" in run.warnings[0]
        run.log({"step": 2})
    assert lines(tmp_path) == [{"step": 1}, {"step": 2}]


def test_lost_metrics_cost_lines_but_not_the_state(tmp_path):
    with Run(tmp_path) as run:
        for step in (1, 2):
            run.log({"step": step})
            save(run, step)
    (tmp_path / "metrics.jsonl").unlink()
    with Run(tmp_path) as run:
        assert run.load()[1]["step"] == 2
        assert any("lines of metrics.jsonl up to step 2 are missing" in warning for warning in run.warnings)
        run.log({"step": 3})
        (tmp_path / "metrics.jsonl").unlink()  # and once more while it runs
        run.log({"step": 4})
    assert lines(tmp_path) == [{"step": 4}]


def test_a_checkpoint_of_another_configuration_is_refused_with_the_fields(tmp_path):
    with Run(tmp_path, {"svi.lr": 0.02, "bsvi": "0.1.0", "sizes": (8, 8)}) as run:
        save(run, 1)
    with Run(tmp_path, {"svi.lr": 0.02, "bsvi": "0.1.0", "sizes": (8, 8)}) as run:
        assert run.find() is not None
    with (
        Run(tmp_path, {"svi.lr": 0.5, "bsvi": "0.2.0", "sizes": (8, 8)}) as run,
        pytest.raises(RunError, match=r"another run \(bsvi: 0.1.0 -> 0.2.0; svi.lr: 0.02 -> 0.5\)"),
    ):
        run.load()


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    with Run(tmp_path) as run:
        save(run, 1)
        os.replace(tmp_path / "state-00000001.ckpt", tmp_path / "state-00000009.ckpt")
        with pytest.raises(RunError, match=r"state-00000009\.ckpt: it is of step 1"):
            run.load()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"config": {}', "\0\0", "[" * 100_000])
def test_a_damaged_configuration_is_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config.json is damaged .*restore it, or start anew with another --out"):
        Run(tmp_path).read("config.json", "config")
    assert Run(tmp_path / "none").read("config.json") is None


def full_disk(limit):
    """From now on no file of this process may grow beyond ``limit`` bytes: the kernel refuses as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit if limit >= 0 else hard, hard))


def test_a_full_disk_keeps_the_old_checkpoint_and_every_line(tmp_path):
    with Run(tmp_path) as run:
        run.log({"step": 1})
        assert save(run, 1, 1.0)
        size = (tmp_path / "metrics.jsonl").stat().st_size
        try:
            full_disk(size + 5)  # a part of a line still fits
            run.log({"step": 2})
            assert not save(run, 2, 2.0)
            assert not run.save_model({"a": torch.zeros(3)}, {}, 2)
            full_disk(size + 40)  # lines fit, a checkpoint does not
            run.log({"step": 3})
            assert not save(run, 3, 3.0)
        finally:
            full_disk(-1)
        assert not list(tmp_path.glob(".*")) and not (tmp_path / "model.safetensors").exists()
        assert Run(tmp_path).find()[0]["a"][0] == 1
        assert sum("the one before is intact, training goes on" in warning for warning in run.warnings) == 1
        assert sum("metrics.jsonl could not be written (File too large)" in warning for warning in run.warnings) == 2
        run.log({"step": 4})
        assert save(run, 4, 4.0)
    assert lines(tmp_path) == [{"step": n} for n in (1, 2, 3, 4)]


def test_training_goes_on_while_the_disk_is_full(tmp_path):
    said = []

    class Watcher(Watching):
        def say(self, line):
            said.append(line)

        def step(self, step):
            full_disk(700 if 5 <= step < 15 else -1)

    model, objective = make()
    reference, same = make()
    torch.manual_seed(7)
    try:
        result = bsvi.train(
            model, objective, batches(), VALID, settings(save_every=0.0), run=tmp_path / "run", watcher=Watcher()
        )
    finally:
        full_disk(-1)
    torch.manual_seed(7)
    bsvi.train(reference, same, batches(), VALID, settings(), run=tmp_path / "whole")
    assert result.finished and any("not written (File too large)" in line for line in said)
    assert [line["step"] for line in lines(tmp_path / "run")] == [line["step"] for line in lines(tmp_path / "whole")]
    for name, value in reference.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_an_end_that_cannot_be_saved_is_an_error_and_no_result(tmp_path):
    class Watcher(Watching):
        def step(self, step):
            full_disk(2000 if step == 20 else -1)  # result.json alone would fit

    model, objective = make()
    try:
        with pytest.raises(RunError, match=r"the end of the run could not be saved: .*free some space"):
            bsvi.train(model, objective, batches(), settings=settings(), run=tmp_path, watcher=Watcher())
    finally:
        full_disk(-1)
    assert not (tmp_path / "result.json").exists()


def state_for_hostility(folder):
    model, objective = make()
    bsvi.train(model, objective, batches(), VALID, settings(steps=7), run=folder)
    (folder / "result.json").unlink()
    path = Run(folder).checkpoints()[0]
    return path, path.read_bytes()


def test_hostile_checkpoints_are_refused_and_run_nothing(tmp_path):
    path, good = state_for_hostility(tmp_path / "run")
    canary = tmp_path / "canary"
    files = hostile_files(good, canary)
    assert len(files) >= 20
    for name, data in files.items():
        path.write_bytes(data)
        model, objective = make()
        with pytest.raises((RunError, Misfit)) as caught:
            bsvi.train(model, objective, batches(), VALID, settings(steps=8), run=tmp_path / "run")
        assert "\n" not in str(caught.value), name
        assert not canary.exists(), name
    path.write_bytes(good)
    model, objective = make()
    assert bsvi.train(model, objective, batches(), VALID, settings(steps=8), run=tmp_path / "run").finished
