"""A page to open in a browser."""

import json
import re

import pytest

from bsvi.report import make_report
from tests.report.made_runs import make_run, make_runs


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A page with what makes one hard to lay out: wide numbers, long names, warnings of every run, a run that goes on."""
    root = tmp_path_factory.mktemp("page")
    folders = make_runs(
        root / "runs", ("vae", "svi", "bsvi", "bsvi-pi"), (0, 1), steps=200, base=-4246.0, pictures=True
    )
    for i, folder in enumerate(folders):
        _doubt(folder, 0.6 + i / 100)
    make_run(root / "runs", "iwae", 0, steps=200, ended=False)
    other = {"svi.lr": 0.1, "svi.momentum": 0.9, "optim.lr": 0.003, "optim.batch": 100, "net.width": 400}
    make_run(root / "other", "bsvi", 0, steps=200, base=-4246.0, config=other)
    return make_report([root], root / "out")


def _doubt(folder, share):
    scores = json.loads((folder / "scores.json").read_text())
    text = (
        f"log-likelihood (BSVI-500): Pareto k-hat is above 0.7 for {share:.0%} of the examples, so a few draws decide"
    )
    scores["test"] |= {"warnings": [text], "diagnostics": {"khat_above_0.7": {"bsvi": share}}}
    (folder / "scores.json").write_text(json.dumps(scores))


@pytest.fixture
def opened(browser, report):
    """Opens the page and, at the end, checks that it complained of nothing and asked for nothing."""
    contexts, complaints, requests = [], [], []

    def open_page(path=report, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {re.sub(r"#.*", "", url) for url in requests if not url.startswith("data:")} <= {report.as_uri()}
