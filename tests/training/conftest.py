"""Where the fault tests keep their folders, and where they put their counts."""

import json
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


@pytest.fixture
def tally():
    """``tally(fault, good, total, **details)``: prints the count, keeps it in $BSVI_FAULT_COUNTS (a JSON file), and checks it."""

    def count(fault, good, total, **details):
        entry = {"good": good, "of": total, **details}
        print(f"{fault}: {good} of {total} {details or ''}")
        if path := os.environ.get("BSVI_FAULT_COUNTS"):
            known = json.loads(Path(path).read_text()) if Path(path).exists() else {}
            Path(path).write_text(json.dumps({**known, fault: entry}, indent=1, sort_keys=True) + "\n")
        assert good == total, (fault, entry)

    return count
