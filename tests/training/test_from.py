"""``bsvi train --from RUN``: a run that begins at another run's weights."""

import json
import shutil
import signal

import numpy as np
import pytest
import safetensors.torch

from bsvi.runs.checkpoint import digest, unpack
from bsvi.runs.folder import Run
from bsvi.training.state import select_prefix
from tests.training import faults
from tests.training.children import TINY, Child, ending, train_through, train_words
from tests.training.commands import in_process


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("source") / "bsvi"
    train_through(folder, "--method", "bsvi")
    return folder


def test_from_begins_at_the_best_weights_of_another_run(tmp_path, source):
    words = ["--method", "bsvi-sir-pi", "--from", str(source)]
    before = {path: path.read_bytes() for path in source.iterdir()}
    child = Child(train_words(tmp_path / "killed", *words), tmp_path / "first", faults.stop_in_first_step)
    assert child.wait() == -signal.SIGKILL
    (first,) = Run(tmp_path / "killed").checkpoints()  # from the beginning, so that it goes on without its origin
    weights = safetensors.torch.load_file(source / "model.safetensors")
    begun = select_prefix(unpack(first.read_bytes())[0], "model.")
    assert digest(begun) == digest({name: value for name, value in weights.items() if "objective." not in name})
    about = json.loads((tmp_path / "killed" / "config.json").read_text())
    step = json.loads((source / "result.json").read_text())["best_step"]
    origin = {"folder": str(source), "step": step, "weights": digest(begun), "method": "bsvi", "how": "from"}
    assert about["origin"] == origin
    assert Child(["train", "--resume", str(tmp_path / "killed"), *TINY.split()[-9:]], tmp_path / "again").wait() == 0
    train_through(tmp_path / "whole", *words)
    assert ending(tmp_path / "whole") == ending(tmp_path / "killed")
    train_through(tmp_path / "whole", *words)  # finished before: --from may stay there
    assert before == {path: path.read_bytes() for path in source.iterdir()}
    warm, cold = (json.loads((run / "metrics.jsonl").open().readline()) for run in (tmp_path / "whole", source))
    assert warm["step"] == cold["step"] == 7 and warm["bound"] > cold["bound"] + 1  # it goes on, at step 0


def test_from_refuses_other_networks_other_data_and_a_run_that_began_elsewhere(tmp_path, source, capsys):
    words = train_words(tmp_path / "run", "--from", str(source))
    assert "(16,) float32, not (17,) float32" in in_process(capsys, [*words, "--net.hidden", "17"])
    assert "has no model yet" in in_process(capsys, train_words(tmp_path / "run", "--from", str(tmp_path)))
    assert "give one of them" in in_process(capsys, [*words, "--fork", str(tmp_path / "fork")])
    np.save(tmp_path / "images.npy", np.zeros((40, 8, 8), np.uint8))
    assert "other images" in in_process(capsys, [*words, "--data.name", str(tmp_path / "images.npy")])
    assert {path.name for path in tmp_path.iterdir()} == {"images.npy"}
    shutil.copytree(source, tmp_path / "scratch")
    (tmp_path / "scratch" / "result.json").unlink()
    line = in_process(capsys, train_words(tmp_path / "scratch", "--method", "bsvi", "--from", str(source)))
    assert f"scratch began at the beginning, not at {source}" in line
