"""Resuming is exact: wherever a run is interrupted, its end is bitwise that of the run that was not."""

import os
import shutil
import signal

import pytest
import torch
from torch.utils.data import DataLoader

import bsvi
from bsvi.runs.checkpoint import unpack
from bsvi.runs.folder import Run
from bsvi.training.state import Misfit, TrainingState
from tests.training.small import VALID, batches, make, settings, state_of


class Crash(Exception):
    """Stands for a power cut: nothing is done about it."""


def interrupted(at, action):
    """Batches as a function of the step; before step ``at`` is taken, ``action`` happens once."""
    done = []
    all_batches = batches()

    def stream(start):
        step = start
        while True:
            if step == at and not done:
                done.append(True)
                action()
            yield all_batches[step % len(all_batches)]
            step += 1

    return stream


def crash():
    raise Crash


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def train(folder, stream, method="bsvi-pi", **changes):
    torch.manual_seed(5)  # whatever the random state was before, resuming puts back its own
    model, objective = make(method)
    torch.manual_seed(7)
    return bsvi.train(model, objective, stream, VALID, settings(**changes), run=folder), model


def through(folder, method="bsvi-pi"):
    result, model = train(folder, interrupted(-1, crash), method)
    return state_of(folder), result, model


@pytest.mark.parametrize(
    "method", ["vae", "iwae", "svi", "bsvi", "bsvi-ds", "bsvi-pi", "bsvi-sir", "bsvi-sir-pi", "bsvi-e2e", "iterative"]
)
def test_a_signal_at_any_step_changes_nothing_in_the_end(tmp_path, method):
    expected, result, model = through(tmp_path / "whole", method)
    for at in (0, 1, 3, 6, 13, 19) if method == "bsvi-pi" else (9,):  # mid-averaging, before a look, on the last step
        folder = tmp_path / f"at {at}"
        stream = interrupted(at, terminate)
        stopped, _ = train(folder, stream, method)
        assert (stopped.stopped, stopped.steps, stopped.finished) == ("SIGTERM", at + 1, False)
        assert not (folder / "result.json").exists()
        again, resumed = train(folder, stream, method)
        assert state_of(folder) == expected
        assert (again.best_valid_bound, again.best_step, again.stopped) == (
            result.best_valid_bound,
            result.best_step,
            "steps",
        )
        for (name, a), b in zip(model.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), name  # the best weights, BatchNorm's buffers among them


@pytest.mark.parametrize("save_every", [1e9, 0.0])
@pytest.mark.parametrize("at", [0, 2, 6, 17, 19])
def test_a_crash_at_any_step_changes_nothing_in_the_end(tmp_path, at, save_every):
    expected, _, _ = through(tmp_path / "whole")
    stream = interrupted(at, crash)
    with pytest.raises(Crash):
        train(tmp_path / "cut", stream, save_every=save_every)
    saved = Run(tmp_path / "cut").checkpoints()
    assert bool(saved) == (save_every == 0.0 and at > 0)  # else before the first checkpoint
    train(tmp_path / "cut", stream, save_every=save_every)
    assert state_of(tmp_path / "cut") == expected


@pytest.mark.slow
def test_a_run_interrupted_at_every_single_step_ends_as_if_it_was_not(tmp_path):
    expected, _, _ = through(tmp_path / "whole")
    for at in range(20):
        assert train(tmp_path / "cut", interrupted(at, terminate))[0].steps == at + 1
    assert train(tmp_path / "cut", interrupted(-1, crash))[0].finished  # the last look was still to be taken
    assert state_of(tmp_path / "cut") == expected


def test_a_crash_between_the_last_checkpoint_and_the_result_is_made_good(tmp_path, monkeypatch):
    expected, result, _ = through(tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "write", lambda *words: crash())
        with pytest.raises(Crash):
            through(tmp_path / "cut")
    assert not (tmp_path / "cut" / "result.json").exists()
    again, _ = train(tmp_path / "cut", interrupted(-1, crash))
    assert state_of(tmp_path / "cut") == expected
    assert (tmp_path / "cut" / "result.json").exists()
    assert again.best_valid_bound == result.best_valid_bound


def test_a_signal_during_validation_leaves_it_to_the_resumed_run(tmp_path):
    expected, _, _ = through(tmp_path / "whole")

    def valid(_):
        yield VALID[0]
        if not (tmp_path / "sent").exists():
            (tmp_path / "sent").touch()
            terminate()
        yield VALID[1]

    model, objective = make()
    torch.manual_seed(7)
    stopped = bsvi.train(model, objective, batches(), valid, settings(), run=tmp_path / "cut")
    assert (stopped.stopped, stopped.steps) == ("SIGTERM", 6)
    assert not (tmp_path / "cut" / "model.safetensors").exists()  # the look was not finished
    train(tmp_path / "cut", interrupted(-1, crash))
    assert state_of(tmp_path / "cut") == expected


def test_validation_does_not_disturb_the_training_noise(tmp_path):
    seen = []
    for valid_every in (1, 1000):
        model, objective = make("bsvi-sir")
        torch.manual_seed(7)
        bsvi.train(model, objective, batches(), VALID, settings(valid_every=valid_every, steps=7), run=tmp_path / "run")
        tensors, _ = unpack(Run(tmp_path / "run").checkpoints()[0].read_bytes())
        seen.append({name: value for name, value in tensors.items() if not name.startswith("best.")})
        shutil.rmtree(tmp_path / "run")
    assert seen[0].keys() == seen[1].keys()
    for name in seen[0]:
        assert torch.equal(seen[0][name], seen[1][name]), name


def test_a_loader_that_draws_from_the_random_state_still_resumes_exactly(tmp_path):
    images = torch.cat([x for x, _ in batches()])
    # draws a seed for its workers at the start of each epoch, though it has none
    loader = DataLoader(images, batch_size=8)
    states = []
    for name, limits in (("whole", [20]), ("cut", [3, 9, 20])):
        for limit in limits:
            model, objective = make("bsvi")
            torch.manual_seed(7)
            changes = {} if limit == 20 else {"time_limit": 1e-9}
            for _ in range(1 if limit == 20 else 3):
                bsvi.train(model, objective, loader, VALID, settings(**changes), run=tmp_path / name)
        states.append(state_of(tmp_path / name))
    assert states[0] == states[1]


def test_batch_norm_buffers_are_those_of_the_step_not_of_a_fresh_model(tmp_path):
    train(tmp_path / "run", interrupted(5, terminate))
    tensors, _ = unpack(Run(tmp_path / "run").checkpoints()[0].read_bytes())
    assert tensors["model.encoder.1.num_batches_tracked"] == 6
    assert tensors["model.encoder.1.running_mean"].abs().sum() > 0


def test_a_moved_folder_resumes(tmp_path):
    expected, _, _ = through(tmp_path / "whole")
    train(tmp_path / "here", interrupted(8, terminate))
    shutil.move(tmp_path / "here", tmp_path / "there")
    train(tmp_path / "there", interrupted(-1, crash))
    assert state_of(tmp_path / "there") == expected


def test_a_checkpoint_of_another_model_is_refused_with_the_keys_and_changes_nothing(tmp_path):
    train(tmp_path / "run", interrupted(3, terminate), "bsvi-pi")
    model, objective = make("bsvi")  # has no logits of pi
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Misfit, match=r"objective\.buffer_weight\.logits is unknown"):
        bsvi.train(model, objective, batches(), VALID, settings(), run=tmp_path / "run")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model, objective = make("bsvi-pi", k=4)
    with pytest.raises(Misfit, match=r"logits is \(3,\) float32, not \(5,\) float32"):
        bsvi.train(model, objective, batches(), VALID, settings(), run=tmp_path / "run")
    model, objective = make("bsvi-pi")
    model.decoder.extra = torch.nn.Linear(1, 1)
    with pytest.raises(Misfit, match=r"decoder\.extra\.bias is missing"):
        bsvi.train(model, objective, batches(), VALID, settings(), run=tmp_path / "run")


def test_a_state_with_a_part_of_the_optimiser_or_of_the_best_weights_is_refused(tmp_path):
    train(tmp_path / "run", interrupted(8, terminate))
    tensors, _ = unpack(Run(tmp_path / "run").checkpoints()[0].read_bytes())
    state = TrainingState(*make())
    state.check_fit(tensors)
    for name in ("optimizer.0.exp_avg", "optimizer.3.step", "best.decoder.mean.bias", "random.cpu"):
        with pytest.raises(Misfit, match=f"{name} is missing"):
            state.check_fit({key: value for key, value in tensors.items() if key != name})
    with pytest.raises(Misfit, match=r"random\.cpu is \(7,\)"):
        state.check_fit({**tensors, "random.cpu": torch.zeros(7, dtype=torch.uint8)})


def test_a_training_state_that_is_restored_captures_what_it_was_restored_from(tmp_path):
    train(tmp_path / "run", interrupted(8, terminate))
    tensors, scalars = unpack(Run(tmp_path / "run").checkpoints()[0].read_bytes())
    state = TrainingState(*make())
    state.restore((tensors, scalars))
    again, numbers = state.capture()
    assert state.step == scalars["step"] == 9
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)
    assert numbers.pop("seconds") >= scalars["seconds"] and numbers.pop("spent") == scalars["spent"]
    assert numbers == {name: scalars[name] for name in numbers}
    state.hand_over(make("vae")[1])
    assert not state.best and state.looks.best_step == 0
    moments = state.optimizer.state_dict()["state"]
    assert len(moments) == len(list(state.model.parameters())), "the model's moments go on"
