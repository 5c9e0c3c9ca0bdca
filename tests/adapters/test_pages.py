"""The code of the pages on other libraries runs as printed."""

import contextlib
import io
import logging
import warnings

import pytest

from tests.test_docs import ROOT, WITH_OTHERS, alike, shown


@pytest.mark.parametrize("page", sorted(WITH_OTHERS))
def test_the_code_on_the_page_runs_with_its_library(page, tmp_path, monkeypatch):
    library = page.removeprefix("your_model_")
    pytest.importorskip(library, reason=f"needs {library}; ./run test-adapters has it")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    with warnings.catch_warnings():
        for code, wanted in shown(ROOT / f"docs/{page}.md"):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(code, page, "exec"), namespace)
            if wanted:
                alike(printed.getvalue(), wanted)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("page", ["your_model_scvi", "your_model_pyro", "your_model_pythae"])
def test_an_adapter_needs_five_lines_at_most(page):
    (glue,) = [code for code, _ in shown(ROOT / f"docs/{page}.md") if "bsvi.adapters." in code]
    lines = [line for line in glue.splitlines() if line.strip() and not line.startswith("print(")]
    assert len(lines) <= 5, lines
