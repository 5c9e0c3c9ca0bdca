"""A small run of ``bsvi train`` to evaluate."""

import shutil

import pytest

from bsvi import cli

TRAIN = (
    "digits --net.kind mlp --net.hidden 8 --net.latent 2 --svi.steps 2 --steps 4 --valid-every 2 --logger none --quiet"
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Made once; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert cli.main(["train", *TRAIN.split(), "--device", "cpu", "--threads", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained, tmp_path / "run")
