"""The code in README and docs runs as printed, the examples run, and links inside the repository lead somewhere."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import bsvi
from tests.oracles import BernoulliDecoder
from tests.report.made_runs import make_runs

ROOT = Path(bsvi.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "results/README.md"]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def given():
    """What the pages suppose: the reader's own networks and data, and scores of two methods."""
    model = bsvi.VAE(nn.Linear(20, 8), BernoulliDecoder())
    scores = bsvi.evaluate(model, torch.rand(7, 20).round(), k=2)
    return {
        "bsvi": bsvi,
        "model": model,
        "ours": scores,
        "theirs": scores,
        "my_encoder": nn.Linear(20, 8),
        "my_decoder": BernoulliDecoder(),
        "batches": [torch.rand(7, 20).round() for _ in range(3)],
        "test_batches": [torch.rand(7, 20).round() for _ in range(2)],
    }


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_runs(tmp_path / "runs", ("vae", "bsvi-sir"), (0,), steps=100)
    namespace = given()
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_the_extensions_do_what_the_page_says():
    namespace = given()
    for block in blocks(ROOT / "docs/extending.md"):
        exec(block, namespace)
    log_w = torch.randn(5, 100, dtype=torch.float64)
    log_pi = bsvi.Uniform()(5)
    renyi, elbo = namespace["renyi"](log_w, log_pi), log_w.mean(0)
    assert (elbo <= renyi + 1e-12).all() and (renyi <= bsvi.giwae(log_w, log_pi) + 1e-12).all()
    assert namespace["bound"].shape == (1000,)
    assert namespace["bound"].mean() < 0
    model = bsvi.VAE(nn.Linear(20, 8), BernoulliDecoder())
    x = torch.rand(30, 20).round()
    with torch.no_grad():
        walk = namespace["AdamSVI"](steps=30, lr=0.05)(model, x).trajectory
    assert walk.log_w[-10:].mean() > walk.log_w[:3].mean() + 0.5  # it climbs


def test_links_inside_the_repository_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "command",
    [["examples/own_vae.py", "--steps", "3", "--methods", "all"], ["examples/toy_posterior.py"]],
    ids=" ".join,
)
def test_the_examples_run(command, tmp_path):
    script, *words = command
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "figures").iterdir())


def test_every_name_on_the_paper_map_exists():
    text = (ROOT / "docs/paper_map.md").read_text()
    for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:\([^`]*\))?`", text):
        first, *rest = name.split(".")
        home = getattr(bsvi, first, None) or importlib.import_module(f"bsvi.{first}")
        for part in rest:
            home = getattr(home, part) if hasattr(home, part) else importlib.import_module(f"{home.__name__}.{part}")
