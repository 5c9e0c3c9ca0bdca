"""The configuration: the same fields as flags and as TOML, unknown ones refused with the nearest name, help in no time."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from bsvi.commands.train_flags import Command, list_flags, parse
from bsvi.experiments.architectures import ARCHITECTURES
from bsvi.experiments.changes import list_differences, read_toml, update_experiment
from bsvi.experiments.config import EXPERIMENTS, Experiment, Net
from tests.pace import slowness


def test_a_toml_file_gives_the_same_fields_as_flags(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'method = "svi"\nbatch_size = 20\n[net]\nkernels = [5, 3]\n[svi]\nlr = 0.5\nclosed_form_kl = true\n'
    )
    words = [
        "--method",
        "svi",
        "--batch-size",
        "20",
        "--net.kernels",
        "5",
        "3",
        "--svi.lr",
        "0.5",
        "--svi.closed-form-kl",
    ]
    assert parse(["omniglot", "--config", str(path)]) == parse(["omniglot", *words])
    assert parse(["omniglot", "--config", str(path)]).anneal.steps == 5000  # the experiment's own where nothing is said


def test_flags_win_over_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 1\n[svi]\nlr = 0.5\nsteps = 4\n")
    command = parse(["digits", "--svi.lr", "0.25", "--config", str(path), "--seed", "2"])
    assert (command.seed, command.svi.lr, command.svi.steps) == (2, 0.25, 4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sed = 1", "unknown field sed; did you mean 'seed'?"),
        ("[svi]\nstep = 3", "unknown field svi.step; did you mean 'steps'?"),
        ("[optim]\nqqq = 3", "unknown field optim.qqq; there are lr, max_grad_norm"),
        ("svi = 3", "svi is a table, got 3; write [svi]"),
        ("[svi]\nsteps = 0", "svi.steps = 0: input should be greater than or equal to 1"),
        ('[svi]\nlr = "fast"', "svi.lr = 'fast': input should be a valid number"),
        ('method = "bvsi"', "method = 'bvsi': unknown method 'bvsi'; did you mean 'bsvi'?"),
        ("seed = ", "is not TOML"),
    ],
)
def test_a_wrong_field_of_a_file_is_one_line(tmp_path, text, told):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_toml(path, EXPERIMENTS["digits"])
    assert told in str(caught.value) and "\n" not in str(caught.value) and str(path) in str(caught.value)


def every_field(settings, prefix=""):
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_field(field.annotation, f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name.rstrip('_')}".replace("_", "-"), field


def time_of_children():
    """Seconds of computing: what a command takes on a machine that has nothing else to do."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_field_is_a_flag_with_its_reason_and_help_takes_under_a_second():
    seconds = []
    environment = {**os.environ, "COLUMNS": "400"}
    for _ in range(3):
        start = time_of_children()
        words = [sys.executable, "-m", "bsvi", "train", "omniglot", "--help"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        seconds.append(time_of_children() - start)
    assert done.returncode == 0 and done.stderr == ""
    assert min(seconds) < slowness(), seconds
    for flag, field in every_field(Command):
        assert flag in list_flags(Command)
        assert f"{flag} " in done.stdout or f"{flag}," in done.stdout, flag
        assert field.description and field.description.split(",")[0][:30] in done.stdout, flag
    for group in ("data options", "net options", "svi options", "optim options", "anneal options"):
        assert group in done.stdout
    assert "(default: 0.1)" in done.stdout and "(default: 5000)" in done.stdout  # the experiment's, not the class's


def test_neither_help_nor_a_wrong_word_imports_torch():
    code = (
        "import sys; from bsvi.cli import main\n"
        "for words in (['train', 'digits', '--help'], ['train', 'digits', '--sed', '1'], ['train', '--resume', '/none']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_resumed_configuration_is_the_stored_one():
    for experiment in EXPERIMENTS.values():
        assert update_experiment(EXPERIMENTS["digits"], experiment.model_dump(mode="json"), "here") == experiment


def test_differences_name_nested_fields():
    old, new = EXPERIMENTS["digits"].model_dump(), EXPERIMENTS["digits"].model_dump()
    new["svi"]["lr"], new["seed"] = 0.7, 4
    assert list_differences(old, new) == ["seed: 0 -> 4", "svi.lr: 0.1 -> 0.7"]
    assert list_differences(old, old) == []


def test_settings_cannot_be_changed_after_they_were_checked():
    with pytest.raises(ValueError, match="frozen"):
        Experiment().seed = -1


def test_building_networks_leaves_the_callers_seed_alone():
    import torch

    from bsvi.experiments.build import build_model

    e = EXPERIMENTS["omniglot-mlp"]
    one, other = (build_model(e, (1, 4, 4), "bernoulli").state_dict() for _ in range(2))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_field_that_an_old_run_lacks_has_its_own_default_not_that_of_the_digits():
    from bsvi.experiments.trained import read_description

    config = {"experiment": "omniglot-mlp", "net": {"kind": "mlp", "latent": 50}, "data": {"name": "omniglot"}}
    about = {"config": config, "data": {"shape": [1, 28, 28], "sha256": ""}, "step": 1}
    e, _ = read_description(about, Path("model.safetensors"))
    assert (e.steps, e.patience, e.svi.lr) == (200_000, 20, Experiment().svi.lr)


def test_every_kind_of_network_that_the_flag_takes_has_a_row():
    assert set(get_args(Net.model_fields["kind"].annotation)) == set(ARCHITECTURES)
