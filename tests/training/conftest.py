"""Where the fault tests keep their folders, and runs to compare with."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.training.children import ending, train_through


@pytest.fixture
def place():
    """An empty folder for many short runs, in memory where that is possible: a kill is one wherever the files are."""
    shared = Path("/dev/shm")
    base = tempfile.mkdtemp(prefix="bsvi-faults-", dir=shared if os.access(shared, os.W_OK) else None)
    yield Path(base)
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The uninterrupted run of a method, made once."""
    base, known = tmp_path_factory.mktemp("reference"), {}

    def of(method="bsvi-sir-pi"):
        if method not in known:
            train_through(base / method, "--method", method)
            known[method] = ending(base / method)
        return known[method]

    of.folder = base
    return of
