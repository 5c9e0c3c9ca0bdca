"""Where the fault tests keep their folders."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def place():
    """An empty folder for many short runs, in memory where that is possible: a kill is one wherever the files are."""
    shared = Path("/dev/shm")
    base = tempfile.mkdtemp(prefix="bsvi-faults-", dir=shared if os.access(shared, os.W_OK) else None)
    yield Path(base)
    shutil.rmtree(base, ignore_errors=True)
