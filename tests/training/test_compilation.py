"""Whether a run compiles: decided from measured times, once, and kept with the run."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from bsvi.cli import main
from bsvi.commands import compilation
from bsvi.experiments.build import build
from bsvi.experiments.config import EXPERIMENTS, Net
from bsvi.system import runtime
from bsvi.system.runtime import CompiledByShape, Runtime
from tests.training.children import train_words
from tests.training.small import state_of

STARTED = runtime.Started(torch.device("cpu"), 1, "auto", False, ())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BSVI_CACHE_DIR", str(tmp_path / "cache"))


def make(method="bsvi-sir", **changes):
    changes = {"net": Net(kind="mlp", hidden=16, latent=4), "method": method, "steps": 10**6} | changes
    return build(EXPERIMENTS["digits"].model_copy(update=changes), torch.device("cpu"), progress=False)


def know(built, seconds):
    (runtime.cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
    compilation.note_seconds(built, seconds)


@pytest.mark.parametrize("method", ["bsvi-sir", "bsvi-e2e"])
def test_a_run_is_compiled_if_it_is_long_enough_to_win_the_time_back(method, monkeypatch):
    monkeypatch.setattr(compilation, "measure_update", lambda built: 0.01)
    long, short = make(method), make(method, steps=1000)  # 10,000 s, and 10 s, of which a quarter can be saved
    assert compilation.choose_compilation(long, STARTED) and not compilation.choose_compilation(short, STARTED)
    know(short, 0.5)
    assert compilation.choose_compilation(short, STARTED)  # its code is kept here
    know(long, 10_000.0)
    assert not compilation.choose_compilation(long, STARTED)
    limited = make(method, seconds=10.0)
    know(limited, 5.0)
    assert not compilation.choose_compilation(limited, STARTED)


def test_words_win_and_methods_without_steps_are_never_compiled(monkeypatch):
    monkeypatch.setattr(compilation, "measure_update", lambda built: 1.0)
    assert not compilation.choose_compilation(make("vae"), STARTED)
    assert not compilation.choose_compilation(make("iwae-dreg"), STARTED)
    for steps, chosen in ((400, False), (500, True)):  # of bsvi-sir, of which a quarter is more than 120 s or not
        assert compilation.choose_compilation(make("vae", phases=f"vae:90000,bsvi-sir:{steps}"), STARTED) is chosen
    assert compilation.choose_compilation(make("vae"), replace(STARTED, compile="on"))
    assert not compilation.choose_compilation(make(), replace(STARTED, compile="off"))
    pixelcnn = make(net=Net(latent=4, channels=32, kernels=(9, 9, 9, 9, 9, 9), encoder=(8, 8)))
    assert runtime.is_heavy(pixelcnn.model.decoder) and compilation.choose_compilation(pixelcnn, STARTED)
    small = make(net=Net(latent=4, channels=4, kernels=(3,), encoder=(8, 8)))  # which does not know its slope
    assert not compilation.choose_compilation(small, STARTED)
    native = make(net=Net(latent=4, channels=8, kernels=(3,), encoder=(8, 8)))  # which has a form in C++
    assert compilation.choose_compilation(native, STARTED)


def test_a_run_keeps_its_choice_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr(compilation, "choose_compilation", lambda built, started: started.compile != "off")
    built = make()
    assert compilation.decide({"compile": False}, built, STARTED) is False
    assert compilation.decide({"compile": True}, built, STARTED) is True
    assert compilation.decide({"compile": True}, built, replace(STARTED, compile="off")) is False
    assert compilation.decide({}, built, STARTED) is True and compilation.decide(None, built, STARTED) is True


def test_measuring_leaves_the_random_state_and_the_gradients_alone():
    built, before = make("bsvi-e2e"), torch.get_rng_state()
    assert 0 < compilation.measure_update(built) < 10
    assert torch.equal(torch.get_rng_state(), before) and all(p.grad is None for p in built.model.parameters())


@pytest.mark.parametrize("text", ["", "[1]", '{"x": "NaN"}', "no json"])
def test_damaged_times_count_as_unknown(text):
    built = make()
    know(built, 3.0)
    assert compilation.find_seconds(built) == 3.0
    (runtime.cache_folder() / compilation.TIMES).write_text(text)
    assert compilation.find_seconds(built) == compilation.UNKNOWN


def test_the_choice_stands_in_config_json_and_a_resumed_run_follows_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runtime, "compile_decoder", lambda decoder, mode, say=print: asked.append(mode))
    words = [*train_words(tmp_path / "run"), "--time-limit", "1e-9"]
    assert main([*words, "--compile", "on"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["compile"] is True
    assert main([*words, "--compile", "auto"]) == 0
    assert asked == ["on", "on"]
    assert main([*words, "--compile", "off"]) == 0 and asked[-1] == "off"
    assert "compile: True -> False" in (tmp_path / "run" / "log.txt").read_text()


def test_numbers_below_those_that_processors_like_count_as_zero():
    tiny = torch.tensor([1e-30])
    torch.set_flush_denormal(False)
    assert (tiny * 1e-10).item() > 0
    runtime.start(Runtime("cpu", compile="off"))
    assert (tiny * 1e-10).item() == 0.0


def test_first_calls_are_timed(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr(CompiledByShape, "seconds", 0.0)
    doubled = CompiledByShape(lambda x: 2 * x, torch.nn.Linear(1, 1), print)
    doubled(torch.ones(3))
    once = CompiledByShape.seconds
    doubled(torch.ones(3))
    assert 0 < once == CompiledByShape.seconds
    assert doubled.settle(torch.ones(3)) is doubled.compiled and doubled.settle(torch.ones(4)) is doubled.eager


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(runtime.find_compiler_problem() is not None, reason="no C++ compiler")
@pytest.mark.parametrize("method", ["bsvi-sir", "bsvi-e2e"])
def test_a_compiled_run_that_was_stopped_ends_with_the_same_bits(method, tmp_path):
    def train(name, *words):
        run = [*train_words(tmp_path / name), "--method", method, "--compile", "on", *words]
        subprocess.run([sys.executable, "-m", "bsvi", *run], check=True, capture_output=True, env=os.environ)
        return tmp_path / name

    whole, parts = train("whole"), train("parts", "--time-limit", "1e-9")
    assert not (parts / "result.json").exists()
    for _ in range(3):
        train("parts", "--time-limit", "0.5")
    train("parts")
    assert "compiling took" in (whole / "log.txt").read_text()
    for name in ("model.safetensors", "result.json"):
        assert (whole / name).exists()
    assert state_of(whole) == state_of(parts)
