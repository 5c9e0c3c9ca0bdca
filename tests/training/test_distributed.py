"""Two and three connected processes on one batch are one process: gradients, metrics, validation, stopping, resuming."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import bsvi
from bsvi.data.batches import Batch
from bsvi.experiments.build import build
from bsvi.experiments.config import EXPERIMENTS
from bsvi.refinement import SVI
from bsvi.training.distributed import FailedElsewhere, Ranks
from bsvi.training.health import NotFinite, count_latents
from bsvi.training.team import Team
from tests.training.children import METHODS
from tests.training.ranks import together
from tests.training.small import Decoder, make, settings, state_of
from tests.training.small import batches as small_batches

SIZE = 12  # examples of a batch: 2 and 3 divide it
# 3 do not divide these, and are more than the first has
VALID = small_batches(1, 2, seed=3) + small_batches(2, 10, seed=2)


def share(team, batch):
    n = len(batch[0]) // team.size
    return tuple(part[team.rank * n : (team.rank + 1) * n] for part in batch)


class Noisy(nn.Module):
    """An encoder that draws: dropout, and noise of its own."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))

    def forward(self, x):
        return self.net(x) + 0.1 * torch.randn_like(self.net(x)) + torch.zeros(len(x), 4).normal_(0.0, 0.1)


def own_family(lambda_):
    mean, scale = lambda_.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, scale.exp()), 1)


CASES = {
    **{method: {"method": method} for method in METHODS},
    "without BatchNorm": {"encoder": lambda: nn.Linear(6, 4)},
    "one example each": {"rows": 2},
    "images": {
        "encoder": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(6, 4))
    },
    "BatchNorm without affine or buffers": {
        "encoder": lambda: nn.Sequential(nn.BatchNorm1d(6, affine=False, track_running_stats=False), nn.Linear(6, 4))
    },
    "a noisy encoder": {"encoder": Noisy},
    "a family of the user's": {"posterior": own_family},
    "several samples": {"svi": SVI(samples=3, closed_form_kl=True)},
    "several resampled": {"method": "bsvi-sir", "resampled": 4},
    "recomputed": {"method": "bsvi-pi", "recompute": True},
    "IWAE recomputed": {"method": "iwae", "recompute": True},
    "DReG": {"method": "iwae-dreg"},
    "end to end": {"method": "bsvi-e2e", "width": 4},
    "end to end, made again in backward": {"method": "bsvi-e2e", "width": 4, "recompute": True},
    "end to end, by differences": {"method": "sa-vae", "finite_difference": True},
    "iterative": {"method": "iterative-bsvi", "width": 4},
}


def gradients(team, name):
    """Gradients, BatchNorm's buffers and the random state after one step of a case."""
    case = dict(CASES[name])
    torch.manual_seed(4)
    encoder = case.pop(
        "encoder", lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    )()
    model = bsvi.VAE(encoder, Decoder(), **{key: case.pop(key) for key in ("posterior",) if key in case}).double()
    x = small_batches(1, case.pop("rows", SIZE))[0]
    objective = bsvi.objective(case.pop("method", "bsvi"), k=3, **case).double()
    (own, _) = share(team, x)
    bound = team.make_bound(model, objective)  # to be kept: with it the connection of the gradients would go
    estimate = bound(own.double(), 0.7)
    estimate.loss.backward()
    parts = [*model.named_parameters(), *objective.named_parameters()]
    return {
        "gradients": {key: value.grad for key, value in parts},
        "buffers": dict(model.named_buffers()),
        "bound": estimate.bound,
        "random": torch.get_rng_state(),
    }


def all_gradients(team, names):
    return {name: gradients(team, name) for name in names}


@pytest.mark.parametrize("size", [2, 3])
def test_the_gradient_is_that_of_the_whole_batch_in_one_process(size):
    names = [name for name in CASES if size == 2 or name != "one example each"]
    torch.manual_seed(0)
    alone = all_gradients(Team(), names)
    found = together(all_gradients, names, size=size)
    for name, expected in alone.items():
        for rank in found:
            got = rank[name]
            assert expected["gradients"].keys() == got["gradients"].keys()
            for key, value in expected["gradients"].items():
                # with one example of each, BatchNorm divides by small differences
                torch.testing.assert_close(got["gradients"][key], value, rtol=1e-8, atol=1e-10, msg=f"{name} {key}")
                assert torch.equal(got["gradients"][key], found[0][name]["gradients"][key]), (name, key)
            for key, value in expected["buffers"].items():
                torch.testing.assert_close(got["buffers"][key], value, rtol=1e-12, atol=1e-12, msg=f"{name} {key}")
            assert torch.equal(got["random"], expected["random"]), name
        torch.testing.assert_close(torch.cat([rank[name]["bound"] for rank in found]), expected["bound"])


def run_of(team, folder, method="bsvi-sir-pi", action=None, valid=VALID, **changes):
    """Train; ``action(team, step)`` is called before each step. Returns result or error, and a digest of the model."""
    torch.manual_seed(5)
    # no bias before BatchNorm: its gradient is rounding alone, which AMSGrad makes into steps
    encoder = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    model, objective = bsvi.VAE(encoder, Decoder()), bsvi.objective(method, k=2)
    torch.manual_seed(7)
    every = small_batches(5, SIZE)

    def stream(start):
        step = start
        while True:
            x, ids = share(team, every[step % 5])
            if action is not None:
                x = ACTIONS[action](team, step, x)
            yield Batch(x, ids)
            step += 1

    try:
        result = bsvi.train(model, objective, stream, valid, settings(**changes), run=folder, team=team)
    except (NotFinite, ArithmeticError) as error:
        result = error
    state = {**model.state_dict(), **objective.state_dict()}
    return result, {name: value.detach().clone() for name, value in state.items()}, torch.get_rng_state()


def spoil(team, step, x):
    if team.rank == team.size - 1 and step == 4:
        x = x.clone()
        x[1, 2] = float("nan")
    return x


def huge(team, step, x):
    return x * 1e38 if team.rank == team.size - 1 and step == 4 else x


def terminate(team, step, x):
    if team.rank == team.size - 1 and step == 7:
        os.kill(os.getpid(), signal.SIGTERM)
    return x


def slow(team, step, x):
    if team.rank == 1 and step == 3:
        time.sleep(1.0)
    return x


ACTIONS = {"spoil": spoil, "huge": huge, "terminate": terminate, "slow": slow}


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("size", [2, 3])
def test_a_run_of_several_processes_is_the_run_of_one(tmp_path, size):
    alone, state, random = run_of(Team(), tmp_path / "one")
    found = together(run_of, tmp_path / "many", size=size)
    for result, own, own_random in found:
        assert (result.steps, result.best_step, result.stopped) == (alone.steps, alone.best_step, alone.stopped)
        assert result.best_valid_bound == found[0][0].best_valid_bound  # the same number everywhere, bit by bit
        assert result.best_valid_bound == pytest.approx(alone.best_valid_bound, rel=1e-6)
        for name, single in state.items():
            assert torch.equal(own[name], found[0][1][name]), name
            torch.testing.assert_close(own[name], single, rtol=1e-4, atol=1e-5)
        assert torch.equal(own_random, random)
    assert len(lines_of(tmp_path / "many")) == len(lines_of(tmp_path / "one")) > 6  # the first process alone writes
    for got, expected in zip(lines_of(tmp_path / "many"), lines_of(tmp_path / "one"), strict=True):
        assert got.keys() == expected.keys()
        for key in expected.keys() - {"seconds", "spent"}:
            assert got[key] == (
                pytest.approx(expected[key], rel=1e-4) if isinstance(got[key], float) else expected[key]
            )


def test_early_stopping_agrees(tmp_path):
    changes = {"steps": 200, "valid_every": 2, "patience": 2, "lr": 0.5}
    alone, _, _ = run_of(Team(), tmp_path / "one", **changes)
    found = together(early, tmp_path / "two", changes)
    assert alone.stopped == "early" and alone.steps < 200
    assert {(result.stopped, result.steps, result.best_step) for result, _, _ in found} == {
        ("early", alone.steps, alone.best_step)
    }


def early(team, folder, changes):
    return run_of(team, folder, **changes)


def acted(team, folder, action, changes=()):
    return run_of(team, folder, action=action, **dict(changes))


@pytest.mark.parametrize(("action", "text"), [("spoil", "x holds NaN or infinity in 1 of 6"), ("huge", "not finite")])
def test_nan_in_one_process_stops_all_with_its_line_and_spoils_nothing(tmp_path, action, text):
    _, state, _ = run_of(Team(), tmp_path / "one", steps=4, valid=None)
    found = together(acted, tmp_path / "two", action)
    lines = {str(error) for error, _, _ in found}
    assert len(lines) == 1 and text in lines.pop()
    line = str(found[0][0])
    assert line.startswith("step 5: ")
    ids = [int(word) for word in line.split("batch ids ")[1].split(";")[0].split(",")]
    assert set(ids) <= set(range(406, 412)) and (action == "huge" or ids == [407])  # of the last process's share
    for _, own, _ in found:
        for name, expected in state.items():
            if "running" not in name and "tracked" not in name:  # BatchNorm has seen the batch
                torch.testing.assert_close(own[name], expected, rtol=1e-4, atol=1e-5)


def test_a_signal_to_any_process_stops_all_and_resuming_is_bitwise(tmp_path):
    whole = together(early, tmp_path / "whole", {})
    expected = state_of(tmp_path / "whole")
    stopped = together(acted, tmp_path / "cut", "terminate")
    assert {(result.stopped, result.steps) for result, _, _ in stopped} == {("SIGTERM", 8)}
    assert not (tmp_path / "cut" / "result.json").exists()
    again = together(early, tmp_path / "cut", {})
    assert state_of(tmp_path / "cut") == expected
    assert again[0][0].best_valid_bound == whole[0][0].best_valid_bound
    for name, value in whole[0][1].items():
        assert torch.equal(again[1][1][name], value), name


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    alone, state, _ = run_of(Team(), tmp_path / "one")
    together(acted, tmp_path / "run", "terminate", size=3)
    resumed, own, _ = run_of(Team(), tmp_path / "run")
    assert resumed.best_valid_bound == pytest.approx(alone.best_valid_bound, rel=1e-6)
    for name, single in state.items():
        torch.testing.assert_close(own[name], single, rtol=1e-4, atol=1e-5)


def test_the_time_limit_of_the_slowest_stops_all(tmp_path):
    found = together(acted, tmp_path / "run", "slow", {"time_limit": 0.9, "steps": 100_000, "valid_every": 1000})
    assert len({result.steps for result, _, _ in found}) == 1
    assert {result.stopped for result, _, _ in found} == {"time"}
    assert state_of(tmp_path / "run")[1]["step"] == found[0][0].steps


def test_training_images_are_shared_without_overlap_or_loss():
    e = EXPERIMENTS["digits"]
    built = build(e, torch.device("cpu"))
    streams = [replace(built, rank=rank, size=size).batches(3) for rank, size in ((0, 1), (0, 2), (1, 2))]
    for _ in range(40):
        whole, first, second = (next(stream) for stream in streams)
        assert len(whole.ids) == e.batch_size and torch.equal(torch.cat([first.ids, second.ids]), whole.ids)
        assert torch.equal(torch.cat([first.x, second.x]), whole.x)  # binarised as by one process


def active(team):
    model, objective = make("vae")
    estimate = objective(model, torch.zeros(4, 6))
    trajectory = replace(estimate.trajectory, lambda_=torch.full((1, 4, 4), float(team.rank)))
    return count_latents(model, replace(estimate, trajectory=trajectory), team)["active_units"]


def test_a_latent_is_active_if_its_mean_varies_over_the_whole_batch():
    assert together(active) == [2, 2]  # within each share it is constant


def failing(team):
    try:
        return team.run_on_first(lambda: 1 / 0)
    except (ZeroDivisionError, FailedElsewhere) as error:
        return type(error).__name__


def test_where_the_first_process_fails_all_fail():
    assert together(failing) == ["ZeroDivisionError", "FailedElsewhere"]


def test_batch_clipping_is_refused_where_a_batch_is_shared():
    model, _ = make()
    with pytest.raises(ValueError, match="couples the examples") as error:
        Ranks(0, 2, 0, torch.device("cpu")).make_bound(model, bsvi.objective("bsvi", svi=SVI(clip="batch")))
    assert "\n" not in str(error.value)
