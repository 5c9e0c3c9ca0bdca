"""model.safetensors from a stranger: refused in one line before anything is built; and the same bytes from the same run."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from bsvi.cli import main
from bsvi.experiments.trained import load_trained
from bsvi.runs.folder import Run, RunError
from bsvi.runs.weights import pack_tensors
from tests.strangers.made import crafted_models, make_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("strangers") / "run")


@pytest.fixture(scope="module")
def crafted(run):
    return crafted_models((run / "model.safetensors").read_bytes())


NAMES = [
    *crafted_models(pack_tensors({"a": torch.ones(1)}, {"bsvi": '{"config": {"net": {}, "svi": {}}, "data": {}}'}))
]


def test_a_good_model_opens(run):
    trained = load_trained(run, CPU)
    assert trained.step == 2 and len(trained.data().test) == 400


@pytest.mark.parametrize("name", NAMES)
def test_a_crafted_model_is_refused_in_one_line(tmp_path, crafted, name):
    (tmp_path / "model.safetensors").write_bytes(crafted[name])
    with pytest.raises(RunError, match=r"model\.safetensors ") as error:
        load_trained(tmp_path, CPU)
    assert len(str(error.value)) < 800


def test_no_memory_is_taken_for_a_crafted_model(tmp_path, crafted):
    """All of them in one process that may take 300 MB more than it has after its imports; the largest file is 5 MB."""
    for number, data in enumerate(crafted.values()):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "model.safetensors").write_bytes(data)
    with open(tmp_path / "huge.safetensors", "wb") as file:
        file.truncate(1 << 42)  # takes no room on the disk
    code = f"""
import pathlib, torch
from tests.training.faults import limit_memory
from bsvi.experiments.trained import load_trained
from bsvi.runs.folder import RunError
torch.set_num_threads(1)
limit_memory(300 << 20)
for path in [*pathlib.Path({str(tmp_path)!r}).glob("*")]:
    try:
        load_trained(path, torch.device("cpu"))
    except RunError:
        continue
    raise SystemExit(f"opened {{path}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("words", [["sample"], ["evaluate", "--k", "2"], ["gap", "--k", "2"]])
def test_every_verb_says_it_in_one_line(tmp_path, crafted, capsys, words):
    for name in ("empty", "header nested 100,000 deep", "experiment with a newline", "latent of 10^9"):
        (tmp_path / "model.safetensors").write_bytes(crafted[name])
        assert main([words[0], str(tmp_path), *words[1:]]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_equal_runs_write_equal_bytes(tmp_path):
    hashes = set()
    for number in range(12):  # the library's own order is right by chance in half of all cases
        with Run(tmp_path / str(number)) as run:
            about = {"config": {"a": 1}, "id": str(number)}
            assert run.save_model({"b": torch.ones(2), "a": torch.zeros(3)}, about, 7)
        hashes.add(hashlib.sha256((tmp_path / str(number) / "model.safetensors").read_bytes()).hexdigest())
    assert len(hashes) == 1
    assert load_file(tmp_path / "0" / "model.safetensors")["b"].tolist() == [1.0, 1.0]


def test_two_runs_of_bsvi_train_write_the_same_model(tmp_path):
    small = [
        "--net.kind",
        "mlp",
        "--net.hidden",
        "4",
        "--net.latent",
        "2",
        "--steps",
        "3",
        "--valid-every",
        "3",
        "--quiet",
    ]
    for name in ("a", "b"):
        assert (
            main(["train", "digits", *small, "--threads", "1", "--compile", "off", "--out", str(tmp_path / name)]) == 0
        )
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


def test_files_in_the_librarys_own_order_still_open(run, tmp_path):
    tensors = load_file(run / "model.safetensors")
    about = json.loads((run / "config.json").read_text())
    for metadata in (
        {"format": "pt", "bsvi": json.dumps({**about, "step": 2})},
        {"bsvi": json.dumps({**about, "step": 2})},
    ):
        save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
        assert load_trained(tmp_path / "model.safetensors", CPU).about["id"] == "0" * 32
