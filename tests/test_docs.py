"""The code in README and docs runs as printed, the examples run, and links inside the repository lead somewhere."""

import contextlib
import importlib
import inspect
import io
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import bsvi
from bsvi.tables.plugins import TABLES
from tests.oracles import BernoulliDecoder
from tests.report.made_runs import make_runs
from tests.test_house import FLOORS

ROOT = Path(bsvi.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "results/README.md"]
# pages whose code builds on what ``given`` returns
SUPPOSES = ("data", "evaluation", "extending", "report", "reporting", "training")

SHOWN = r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?"  # code, and what the page says that it prints
NUMBER = r"-?\d+(?:\.\d+)?"


def shown(page):
    return re.findall(SHOWN, page.read_text(), flags=re.DOTALL | re.MULTILINE)


def blocks(page):
    return [code for code, _ in shown(page)]


def alike(got, wanted):
    """The same words, and numbers that differ by no more than processors do after some training."""
    assert re.sub(NUMBER, "#", got).split() == re.sub(NUMBER, "#", wanted).split(), got
    pairs = zip(re.findall(NUMBER, got), re.findall(NUMBER, wanted), strict=True)
    assert all(abs(float(a) - float(b)) <= 0.05 + 0.02 * abs(float(b)) for a, b in pairs), got


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
        "test_batches": [torch.rand(4, 20).round()],
    }


WITH_OTHERS = {
    "your_model_scvi",
    "your_model_pyro",
    "your_model_pythae",
    "your_model_lightning",
}  # tests/adapters runs them


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page) and page.stem not in WITH_OTHERS],
    ids=lambda page: page.name,
)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    if page.stem in SUPPOSES:
        make_runs(tmp_path / "runs", ("vae", "bsvi-sir"), (0,), steps=100)
        namespace = given()
    with contextlib.ExitStack() as stack:
        for table in TABLES:
            stack.enter_context(mock.patch.dict(table))  # a page may add a row
        for code, wanted in shown(page):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, str(page), "exec"), namespace)
            if wanted:
                alike(printed.getvalue(), wanted)


def test_shown_output_that_is_wrong_is_found():
    alike("bound: -24.16 of 3", "bound: -24.14 of 3")
    for wrong in ("bound: -25.14 of 3", "loss: -24.14 of 3", "bound: -24.14 of 3 more"):
        with pytest.raises(AssertionError):
            alike("bound: -24.14 of 3", wrong)


def test_the_readme_has_about_600_words():
    text = re.sub(r"^```.*?^```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"[^\W\d_][\w'-]*", re.sub(r"\]\([^)]*\)", "]", text))) < 650


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_has_more_than_30_words(page):
    for sentence in sentences(page):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        assert len(words) <= 30, f"{page.name}: {sentence}"


def test_a_long_sentence_is_found_and_its_parts_are_not_counted_apart(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\nOne; two: three. Four `a.b` (five)!\n\n- six\n- seven\n\n    code here\n")
    assert list(sentences(page)) == ["One; two: three.", "Four `a.b` (five)!", "- six", "- seven"]


def sentences(page):
    """Of the prose: code, tables, headings and pictures left out; an item of a list is a text of its own."""
    text = re.sub(r"^```.*?^```|^    .*?$|^[#|!].*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. )", text):
        yield from filter(None, (s.strip() for s in re.split(r"(?<=[.!?])[*_)]*\s+(?=[^a-z\s])", part)))


def test_the_readmes_tables_are_those_of_the_code_and_of_the_results():
    text, cost = (ROOT / "README.md").read_text(), (ROOT / "results/cost.md").read_text().splitlines()
    beyond = (ROOT / "docs/which_method.md").read_text()
    for name, row in bsvi.METHODS.items():
        line = rf"^\| `{name}` \|(?:[^|]*\|){{2}} (?:(\d*k) \+ )?(\d) \| (.*?) \|$"
        ((times, more, use_when),) = re.findall(line, text if row.paper else beyond, flags=re.MULTILINE)
        assert use_when == row.use_when
        k = 9 * int(times.strip("k") or 1) if times else 0
        assert k + int(more) == bsvi.objective(name, k=9).decoder_calls, name
    rows = re.findall(r"^\| ([A-Z][\w′-]+) \| (−[^|]+) \| (−[^|]+) \| (−[^|]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 5
    for name, *numbers in rows:
        for networks, number in zip(("omniglot-mlp", "fashion-mnist-mlp", "svhn-mlp"), numbers, strict=True):
            assert any(f"| {networks} | {name} |" in line and f"| {number} (4) |" in line for line in cost), (
                name,
                number,
            )


def test_the_numbers_on_which_method_to_choose_are_those_of_the_results():
    results = " ".join(path.read_text() for path in (ROOT / "results").glob("*.md"))
    text = (ROOT / "docs/which_method.md").read_text()
    numbers = re.findall(r"[−+]\d[\d.]*\d(?: ± [\d.]*\d| \[[^\]]+\])?|(?<![−+.\d] )\b\d+[.,]\d+\b", text)
    assert len(numbers) > 25
    for number in numbers:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", results), number


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


def test_the_example_with_networks_of_its_own_runs_with_every_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_vae.py", "--steps", "3", "--methods", "all"])
    runpy.run_path(str(ROOT / "examples/own_vae.py"), run_name="__main__")
    assert any((tmp_path / "figures").iterdir())


def test_every_name_of_the_library_on_the_pages_exists():
    for page in PAGES:
        for name, call in re.findall(r"(?<!`)`bsvi\.([\w.]+)(\([^`]*\))?", page.read_text()):
            home = find_name(name)
            given = re.findall(r"[(,] ?(\w+)=", call) if not isinstance(home, dict) else []
            known = inspect.signature(home).parameters if given else {}
            if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                assert set(given) <= set(known), f"{page.name}: {name} takes no {set(given) - set(known)}"


def find_name(name):
    """The object of a dotted name under bsvi; AttributeError or ImportError where there is none."""
    home = bsvi
    for part in name.split("."):
        home = getattr(home, part) if hasattr(home, part) else importlib.import_module(f"{home.__name__}.{part}")
    return home


def test_the_architecture_is_that_of_the_package():
    text = (ROOT / "docs/architecture.md").read_text()
    levels = re.findall(r"^ {4}([a-z, ]+)$", text, flags=re.MULTILINE)[::-1]
    shown = [set(re.findall(r"\w+", level)) - {"the", "with", "and", "checks", "beyond"} for level in levels]
    assert shown == [rooms - {"cli", "__main__", "__init__"} for rooms in FLOORS]
    packages = {path.parent.name for path in ROOT.glob("bsvi/*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == packages


def test_every_name_on_the_paper_map_exists():
    text = (ROOT / "docs/paper_map.md").read_text()
    for name in re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)(?:\([^`]*\))?`", text):
        if name not in bsvi.METHODS:
            find_name(name)
