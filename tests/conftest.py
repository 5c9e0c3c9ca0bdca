import json
import os
import shutil
from pathlib import Path

# Some virtual machines announce AMX and kill the process that uses it, as bfloat16 products would.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import jaxtyping
import pytest
import torch

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync"


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)  # the tests run as two processes
    torch.set_flush_denormal(False)  # a command in a test before may have set it, and hypothesis wants all numbers
    torch.manual_seed(0)


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


@pytest.fixture(scope="session")
def browser():
    """One browser for all tests of a process: two at once would share an event loop, which playwright refuses."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    found = os.environ.get("BSVI_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no browser found: install chromium, or name one in BSVI_BROWSER")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def as_users_call():
    """Without the checks of annotations that the tests add: whoever calls the library has none."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
