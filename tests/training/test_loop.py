"""The training loop: annealing, early stopping, the best weights, a user's own model, and what stops it."""

import json
import math
import threading

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bsvi
from bsvi.data.batches import Batch
from bsvi.parameters import in_eval_mode
from bsvi.runs.checkpoint import pack, unpack
from bsvi.runs.folder import Run
from bsvi.training.health import NotFinite
from bsvi.training.loop import Watcher, anneal_beta
from bsvi.training.state import ValidationHistory
from bsvi.training.streams import start_at
from bsvi.training.validation import VALIDATION_SEED, validate
from tests.oracles import being_tried
from tests.training.small import VALID, Decoder, batches, make, settings


class Noting(Watcher):
    def __init__(self):
        self.lines, self.looks, self.said, self.started = [], [], [], []

    def start(self, step):
        self.started.append(step)

    def train(self, line):
        self.lines.append(line)

    def valid(self, line, model, batch):
        self.looks.append(line)

    def say(self, line):
        self.said.append(line)


class Scripted(bsvi.Objective):
    """An objective whose bound on validation images follows a script, to steer early stopping."""

    def __init__(self, objective, bounds):
        super().__init__(objective.refinement, objective.buffer_weight, objective.theta)
        self.bounds = iter(bounds)

    def forward(self, model, x, beta=1.0):
        estimate = super().forward(model, x, beta)
        if torch.is_grad_enabled():
            return estimate
        bound = torch.full_like(estimate.bound, next(self.bounds))
        return bsvi.Estimate(estimate.loss, bound, estimate.trajectory, estimate.log_pi)


def test_beta_rises_in_a_straight_line_to_one_and_stays():
    s = settings(beta_start=0.1, beta_steps=5000)
    assert anneal_beta(s, 0) == 0.1
    assert anneal_beta(s, 2500) == pytest.approx(0.55)
    assert [anneal_beta(s, step) for step in (5000, 5001, 199_999)] == [1.0, 1.0, 1.0]
    assert anneal_beta(settings(), 0) == 1.0  # without annealing


def test_annealing_reaches_the_objective_in_training_and_never_in_validation():
    model, objective = make("bsvi")
    seen = []

    def spy(module, inputs):
        seen.append((torch.is_grad_enabled(), inputs[2] if len(inputs) > 2 else 1.0))

    objective.register_forward_pre_hook(spy)
    watcher = Noting()
    changes = {"beta_start": 0.5, "beta_steps": 4, "steps": 6, "valid_every": 3, "log_every": 1}
    bsvi.train(model, objective, batches(), VALID, settings(**changes), watcher=watcher)
    assert [beta for training, beta in seen if training] == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]
    assert {beta for training, beta in seen if not training} == {1.0}
    assert [line["beta"] for line in watcher.lines] == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]


def test_training_stops_early_and_leaves_the_best_weights(tmp_path):
    model, objective = make("bsvi")
    bounds = [-9.0, -5.0, -6.0, -5.0, -7.0, -1.0]  # -5.0 again is no better; the sixth look is never taken
    script = Scripted(objective, [bound for bound in bounds for _ in VALID])
    watcher = Noting()
    result = bsvi.train(
        model,
        script,
        batches(),
        VALID,
        settings(steps=60, valid_every=2, patience=3),
        tmp_path,
        watcher=watcher,
        config={"a": 1},
    )
    assert (result.stopped, result.steps, result.best_step, result.best_valid_bound) == ("early", 10, 4, -5.0)
    assert [line["best"] for line in watcher.looks] == [True, True, False, False, False]
    kept = load_file(tmp_path / "model.safetensors")
    reference, objective = make("bsvi")
    bsvi.train(reference, objective, batches(), settings=settings(steps=4))  # the weights of step 4
    for name, value in reference.state_dict().items():
        assert torch.equal(value, kept[name]) and torch.equal(value, model.state_dict()[name]), name
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["stopped"] == "early" and stored["best_step"] == 4 and stored["decoder_calls"] == 10 * 3


def test_a_run_that_stopped_early_stays_stopped(tmp_path):
    for _ in range(2):
        model, objective = make("bsvi")
        script = Scripted(objective, [bound for bound in (-1.0, -2.0, -3.0, 0.0) for _ in VALID])
        result = bsvi.train(model, script, batches(), VALID, settings(steps=60, valid_every=2, patience=2), tmp_path)
        assert (result.stopped, result.steps, result.best_step) == ("early", 6, 2)


def test_patience_counts_looks_without_a_better_bound():
    looks = ValidationHistory()
    assert not looks.is_exhausted(2) and looks.take(10, -3.0) and not looks.take(20, math.nan)
    assert not looks.is_exhausted(2) and not looks.take(30, -3.0) and looks.is_exhausted(2)
    assert not looks.is_exhausted(0)  # 0: never
    assert looks.take(40, -2.5) and not looks.is_exhausted(2)
    assert (looks.best, looks.best_step, looks.since, looks.latest) == (-2.5, 40, 0, 40)


def test_without_validation_the_last_weights_are_the_best(tmp_path):
    model, objective = make("bsvi")
    result = bsvi.train(model, objective, batches(), settings=settings(steps=5), run=tmp_path)
    assert (result.best_step, result.stopped) == (5, "steps")
    kept = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert json.loads((tmp_path / "result.json").read_text())["best_valid_bound"] is None


def test_validation_uses_the_same_noise_every_time_and_eval_mode():
    model, objective = make("bsvi")
    bsvi.train(model, objective, batches(), settings=settings(steps=3))
    modes = []
    model.encoder[1].register_forward_hook(lambda module, *_: modes.append(module.training))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, batch = validate(model, objective, VALID)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert validate(model, objective, lambda _: iter(VALID))[0] == first
    assert modes and not any(modes) and model.encoder[1].training
    assert batch is VALID[0]
    with torch.no_grad(), in_eval_mode(model):
        torch.manual_seed(VALIDATION_SEED)
        by_hand = torch.cat([objective(model, x).bound for x, _ in VALID]).mean()
    assert first == pytest.approx(by_hand.item(), rel=1e-12)


def test_a_part_that_the_user_put_into_eval_mode_stays_there():
    model, objective = make("bsvi")
    model.decoder = nn.Sequential()
    model.decoder = WithNorm()
    model.decoder.norm.eval()  # as the error about batch statistics advises
    bsvi.train(model, objective, batches(), VALID, settings(steps=2, valid_every=1))
    assert not model.decoder.norm.training and model.encoder[1].training
    model.eval()
    model.decoder = Decoder()
    bsvi.train(model, objective, batches(), settings=settings(steps=1))
    assert model.encoder[1].training


class WithNorm(Decoder):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x, z):
        return super().forward(x, self.norm(z))


def test_plain_batches_without_ids_and_any_module_can_be_trained():
    model, objective = make("bsvi-sir")
    watcher = Noting()
    plain = [x for x, _ in batches()]
    result = bsvi.train(
        model, objective, plain, plain[:1], settings(steps=30, valid_every=30, lr=0.03), watcher=watcher
    )
    assert result.finished and watcher.started == [0]
    assert watcher.lines[-1]["bound"] > watcher.lines[0]["bound"]
    assert [line["step"] for line in watcher.lines] == [4, 8, 12, 16, 20, 24, 28, 30]


def test_a_line_averages_the_steps_since_the_line_before():
    lines = []
    for log_every in (1, 5):
        model, objective = make("bsvi-pi")
        watcher = Noting()
        torch.manual_seed(3)
        bsvi.train(model, objective, batches(), settings=settings(steps=10, log_every=log_every), watcher=watcher)
        lines.append(watcher.lines)
    for name in ("bound", "svi_0", "svi_k", "bsvi_k", "kl", "reconstruction", "ess", "grad_norm", "moved"):
        for half in range(2):
            average = sum(line[name] for line in lines[0][5 * half : 5 * half + 5]) / 5
            assert lines[1][half][name] == pytest.approx(average, rel=1e-9), name


def test_training_works_outside_the_main_thread_where_no_signal_can_be_taken():
    model, objective = make("bsvi")
    results = []
    thread = threading.Thread(
        target=lambda: results.append(bsvi.train(model, objective, batches(), settings=settings(steps=2)))
    )
    thread.start()
    thread.join()
    assert results[0].finished


def test_batches_that_can_be_read_only_once_are_refused_instead_of_hanging():
    model, objective = make("bsvi")
    with pytest.raises(ValueError, match="can be read only once"):
        bsvi.train(model, objective, (batch for batch in batches()), settings=settings(steps=6))
    with pytest.raises(ValueError, match="or there are none"):
        bsvi.train(model, objective, [], settings=settings())
    with pytest.raises(ValueError, match="ended after 5 steps"):
        bsvi.train(model, objective, lambda step: iter(batches()[step:]), settings=settings())
    with pytest.raises(ValueError, match="no validation batches"):
        bsvi.train(model, objective, batches(), iter([]), settings(valid_every=1))


def test_a_stream_is_taken_up_at_any_step():
    assert [next(start_at("abc", step)) for step in (0, 2, 3, 7)] == ["a", "c", "a", "b"]
    assert next(start_at(lambda step: iter([step]), 12)) == 12


def test_the_time_limit_saves_and_leaves_and_the_run_goes_on(tmp_path):
    ends = []
    for _ in range(3):
        model, objective = make("bsvi")
        ends.append(bsvi.train(model, objective, batches(), VALID, settings(steps=3, time_limit=1e-9), run=tmp_path))
    assert [(end.stopped, end.steps) for end in ends] == [("time", 1), ("time", 2), ("time", 3)]
    model, objective = make("bsvi")
    assert bsvi.train(model, objective, batches(), VALID, settings(steps=3), run=tmp_path).stopped == "steps"


def spoil(tensor, rows=(3,), value=math.nan):
    tensor = tensor.clone()
    tensor[list(rows)] = value
    return tensor


def bad_data(model, objective, value):
    return lambda step: iter(
        [Batch(spoil(x, value=value), ids) if i == 2 else Batch(x, ids) for i, (x, ids) in enumerate(batches())]
    )


def bad_decoder(model, objective, value):
    forward, calls = model.decoder.forward, []

    def spoilt(x, z):
        calls.extend([] if being_tried() else [1])
        return spoil(forward(x, z), value=value) if len(calls) > 2 * calls_per_step(objective) else forward(x, z)

    model.decoder.forward = spoilt
    return batches()


def calls_per_step(objective):
    return objective.decoder_calls


def bad_gradient(model, objective, value):
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient * value if len(calls) == 3 else gradient

    model.decoder.mean.bias.register_hook(hook)
    return batches()


def bad_pi_gradient(model, objective, value):
    calls = []

    def hook(gradient):
        calls.append(1)
        return gradient * value if len(calls) == 3 else gradient

    objective.buffer_weight.logits.register_hook(hook)
    return batches()


def bad_pi(model, objective, value):
    def stream(step):
        for i, batch in enumerate(batches()):
            if i == 2:
                with torch.no_grad():
                    objective.buffer_weight.logits[1] = value
            yield batch

    return stream


SITES = {
    bad_data: r"step 3: x holds NaN or infinity in 1 of 8 training examples, batch ids 203; clean the data",
    bad_decoder: r"step 3: the decoder's output ln p\(x\|z\) is not finite in any draw for batch ids 203; look",
    bad_gradient: r"step 3: the gradient of decoder.mean.bias is not finite, batch ids 200, 201, .*207; lower",
    bad_pi_gradient: r"step 3: the gradient of the objective's buffer_weight.logits is not finite, batch ids 200",
    bad_pi: r"step 3: parameter the objective's buffer_weight.logits is not finite, batch ids 200",
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("site", SITES, ids=lambda site: site.__name__)
def test_nan_or_infinity_stops_before_any_parameter_or_checkpoint_takes_it_in(tmp_path, site, value):
    model, objective = make("bsvi-pi")
    stream = site(model, objective, value)
    with pytest.raises(NotFinite, match=SITES[site]):
        bsvi.train(model, objective, stream, VALID, settings(save_every=0.0), run=tmp_path)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    for path in Run(tmp_path).checkpoints():
        tensors, _ = unpack(path.read_bytes())
        for name, tensor in tensors.items():
            assert not tensor.is_floating_point() or torch.isfinite(tensor).all(), name
    assert [int(path.stem[6:]) for path in Run(tmp_path).checkpoints()] == [2, 1]
    assert not (tmp_path / "result.json").exists()


def test_nan_in_validation_images_is_told_with_their_ids():
    model, objective = make("bsvi")
    bad = [Batch(spoil(x, rows=(1, 4)), ids) for x, ids in VALID]
    with pytest.raises(
        NotFinite, match="step 6: x holds NaN or infinity in 2 of 10 validation examples, batch ids 1, 4"
    ):
        bsvi.train(model, objective, batches(), bad, settings())


def test_a_parameter_that_the_optimiser_itself_makes_infinite_is_never_saved(tmp_path):
    model, objective = make("bsvi")
    with pytest.raises(NotFinite, match=r"step 1: .* not finite, so not saved"):
        bsvi.train(model, objective, batches(), settings=settings(lr=math.inf, save_every=0.0), run=tmp_path)
    assert Run(tmp_path).checkpoints() == []


def test_a_buffer_that_holds_infinity_on_purpose_is_no_reason_to_stop(tmp_path):
    model, objective = make("bsvi")
    model.decoder.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    assert bsvi.train(model, objective, batches(), VALID, settings(save_every=0.0), run=tmp_path).finished


def test_a_batch_without_ids_is_named_by_its_rows():
    model, objective = make("bsvi")
    plain = [spoil(x, rows=(0, 5)) for x, _ in batches()]
    with pytest.raises(NotFinite, match="in 2 of 8 training examples, rows of the batch 0, 5"):
        bsvi.train(model, objective, plain, settings=settings())


def test_a_validation_bound_that_is_not_finite_is_told_and_never_the_best():
    model, objective = make("bsvi")
    script = Scripted(objective, [-math.inf, -math.inf, -2.0, -2.0])
    watcher = Noting()
    result = bsvi.train(model, script, batches(), VALID, settings(steps=4, valid_every=2), watcher=watcher)
    assert [line for line in watcher.said if line.startswith("step 2: the validation bound is not finite")]
    assert (result.best_step, result.best_valid_bound) == (4, -2.0)


def test_a_learned_pi_is_of_the_same_step_as_the_best_weights(tmp_path):
    changes = {"lr": 0.05, "valid_every": 2}
    reference, best = make("bsvi-pi")
    bsvi.train(reference, best, batches(), settings=settings(steps=4, lr=0.05))  # weights and pi of step 4
    for steps in (8, 10):  # the second call resumes a finished run, with more steps
        model, objective = make("bsvi-pi")
        script = Scripted(objective, [bound for bound in (-9.0, -5.0, -6.0, -7.0) for _ in VALID])
        if steps == 10:
            (tmp_path / "result.json").unlink()
            script.bounds = iter([-8.0] * len(VALID))
        result = bsvi.train(model, script, batches(), VALID, settings(steps=steps, **changes), tmp_path)
        assert result.best_step == 4
        kept = load_file(tmp_path / "model.safetensors")
        for name, value in reference.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]) and torch.equal(value, kept[name]), name
        assert torch.equal(script.buffer_weight.logits, best.buffer_weight.logits)
        assert torch.equal(kept["objective.buffer_weight.logits"], best.buffer_weight.logits)


def test_a_checkpoint_from_before_pi_was_kept_opens_and_says_so(tmp_path):
    model, objective = make("bsvi-pi")
    bsvi.train(model, objective, batches(), VALID, settings(steps=6, valid_every=2), tmp_path)
    run = Run(tmp_path)
    tensors, scalars = unpack(run.checkpoints()[0].read_bytes())
    old = {name: value for name, value in tensors.items() if not name.startswith("best_objective.")}
    assert len(old) < len(tensors)
    run.checkpoints()[0].write_bytes(pack(old, scalars))
    model, objective = make("bsvi-pi")
    watcher = Noting()
    assert bsvi.train(
        model, objective, batches(), VALID, settings(steps=6, valid_every=2), tmp_path, watcher=watcher
    ).finished
    assert watcher.said[0] == "resumed at step 6; pi of the best step is not in this older checkpoint"
