"""What a person sees: plain lines or a live one, TensorBoard files, wandb only when asked for and offline."""

import io
import re
import sys
import types

import pytest
import torch
from rich.console import Console

import bsvi
from bsvi.training.watch import Screen, TensorBoard, Wandb
from tests.training.children import Child, ending, train_words
from tests.training.small import VALID, batches, make, settings


def train(screen, **changes):
    model, objective = make()
    with screen:
        return bsvi.train(model, objective, batches(), VALID, settings(**changes), watcher=screen)


def test_without_a_terminal_there_are_plain_lines(capsys):
    train(Screen("mine", 20))
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 5
    pattern = (
        r"step 4/20  \S+ s left  \S+ steps/s  bound -\d+\.\d\d  svi_0 .* svi_k .* bsvi_k .* kl .* pi 0\.\d\d  lr 0.001"
    )
    assert re.fullmatch(pattern, lines[0]), lines[0]
    assert "step 6: validation bound" in said.err and "\x1b" not in said.out + said.err


def test_quiet_prints_nothing(capsys):
    train(Screen("mine", 20, quiet=True))
    said = capsys.readouterr()
    assert said.out == said.err == ""


@pytest.mark.parametrize("width", [60, 80, 200])
def test_on_a_terminal_there_is_a_live_display_with_all_numbers_at_any_width(width):
    screen = Screen("digits bsvi-sir seed 0", 20)
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=width)
    screen.console = screen.progress.live.console = terminal
    screen.live, screen.progress.disable = True, False
    train(screen)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "\x1b" in file.getvalue() and "step 6: validation bound" in shown
    last = " ".join(shown[shown.rindex("digits") if width > 60 else shown.rindex("20/20") :].split())
    for number in ("20/20", "left", "steps/s", "bound -", "svi_0 -", "svi_k -", "bsvi_k -", "kl ", "pi 0.", "lr 0.001"):
        assert number in last, (number, last)


def test_a_warning_that_comes_again_and_again_is_said_at_doubling_intervals(capsys):
    screen = Screen("mine", 20)
    for step in range(1, 101):
        screen.say(f"step {step}: posterior collapse: no latent is active")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == [f"step {n}" for n in (1, 2, 4, 8, 16, 32, 64)]
    screen.say("step 100: something else")
    assert "something else" in capsys.readouterr().err


class Broken:
    def __init__(self, at):
        self.at, self.calls = at, []

    def __getattr__(self, name):
        if name not in ("start", "scalars", "images", "close"):
            raise AttributeError(name)

        def call(*words):
            self.calls.append(name)
            if name == self.at:
                raise OSError(28, "No space left on device")

        return call


@pytest.mark.parametrize("at", ["start", "scalars", "images", "close"])
def test_a_logger_that_fails_is_left_out_and_training_goes_on(capsys, at):
    broken, sound = Broken(at), Broken("never")
    assert train(Screen("mine", 20, [broken, sound])).finished
    assert broken.calls.count(at) == 1 and sound.calls[0] == "start" and sound.calls[-1] == "close"
    assert "Broken failed and is left out" in capsys.readouterr().err


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "scalars": 0})
    found.Reload()
    return found


def with_tensorboard(folder, *more):
    words = train_words(
        folder, "--net.kind", "pixelcnn", "--net.kernels", "3", "--steps", "12", "--valid-every", "4", *more
    )
    words[words.index("none")] = "tensorboard"
    return [*words, "--log-every", "2"]


def test_tensorboard_files_hold_the_papers_curves_and_reconstructions_and_change_nothing(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra is not installed: pip install 'bsvi[tensorboard]'")
    child = Child(with_tensorboard(tmp_path / "board"), tmp_path / "board")
    assert child.wait() == 0, child.said()
    found = events(tmp_path / "board")
    curves = {"curves/svi_k minus svi_0", "curves/bsvi_k minus svi_k", "curves/buffer weight average"}
    assert {*curves, "train/bound", "train/kl", "valid/bound"} <= {*found.Tags()["scalars"]}
    assert [event.step for event in found.Scalars("train/bound")] == [2, 4, 6, 8, 10, 12]
    pictures = found.Images("reconstructions")
    assert pictures and (pictures[0].height, pictures[0].width) == (2 * 8, 8 * 8)
    plain = with_tensorboard(tmp_path / "plain")
    plain[plain.index("tensorboard")] = "none"
    child = Child(plain, tmp_path / "plain")
    assert child.wait() == 0
    assert not (tmp_path / "plain" / "tensorboard").exists()
    assert ending(tmp_path / "plain") == ending(tmp_path / "board")  # BatchNorm and noise are untouched by the pictures


def test_tensorboard_shows_no_step_twice_after_resuming(tmp_path):
    pytest.importorskip("tensorboard", reason="the extra is not installed: pip install 'bsvi[tensorboard]'")
    folder = tmp_path / "run"
    from tests.training import faults

    child = Child(with_tensorboard(folder, "--save-every", "1e-9"), folder, faults.kill_in_save, 75, "before")
    assert child.wait() == -9
    assert Child(with_tensorboard(folder, "--save-every", "1e-9"), folder).wait() == 0
    assert [event.step for event in events(folder).Scalars("train/bound")] == [2, 4, 6, 8, 10, 12]


def test_wandb_is_offline_unless_told_otherwise_and_keeps_its_run(tmp_path, monkeypatch):
    logged = []

    class Run:
        def log(self, numbers, step):
            logged.append((step, numbers))

        def finish(self):
            logged.append("finished")

    fake = types.ModuleType("wandb")
    fake.init = lambda **options: logged.append(options) or Run()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = Wandb(tmp_path / "bsvi-seed0", {"id": "abc", "seed": 0})
    assert logged == []
    logger.start(0)
    import os

    assert os.environ["WANDB_MODE"] == "offline"
    assert logged[0]["id"] == "abc" and logged[0]["resume"] == "allow" and logged[0]["name"] == "bsvi-seed0"
    logger.scalars("train", {"step": 7, "bound": -3.5, "split": "train", "best": True})
    logger.images(7, None, None)
    logger.close()
    assert logged[1:] == [(7, {"train/bound": -3.5}), "finished"]
    monkeypatch.delenv("WANDB_MODE")


def test_a_user_who_wants_wandb_online_says_so(tmp_path, monkeypatch):
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: None
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_MODE", "online")
    Wandb(tmp_path, {"id": "abc"}).start(0)
    import os

    assert os.environ["WANDB_MODE"] == "online"


def test_no_connection_is_opened_while_training(tmp_path):
    child = Child(train_words(tmp_path / "run"), tmp_path / "run", forbid_sockets)
    assert child.wait() == 0, child.said()


def forbid_sockets():
    import socket

    def refuse(*words):
        raise AssertionError("a connection was opened")

    socket.socket.connect = refuse
    socket.getaddrinfo = refuse


def test_reconstructions_leave_the_model_and_the_random_state_alone(tmp_path):
    from bsvi.experiments.build import build, reconstruct
    from bsvi.experiments.config import EXPERIMENTS

    built = build(EXPERIMENTS["digits"], torch.device("cpu"))
    before = {name: value.clone() for name, value in built.model.state_dict().items()}
    state = torch.get_rng_state()

    class Writer:
        def add_image(self, name, grid, step, dataformats):
            self.grid = grid

    board = TensorBoard(tmp_path, reconstruct)
    board.writer = Writer()
    board.images(3, built.model, next(built.valid()))
    assert board.writer.grid.shape == (16, 64, 1)
    assert torch.equal(torch.get_rng_state(), state) and built.model.training
    for name, value in built.model.state_dict().items():
        assert torch.equal(value, before[name]), name
