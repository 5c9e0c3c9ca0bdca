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
