"""Rows of your own on the command line: modules that add them, named by an environment variable.

    BSVI_PLUGINS=my_rows bsvi train digits --method mine

names a module that Python can import, or a file: ``BSVI_PLUGINS=./my_rows.py``. Several are put apart by commas. They are
your code and run with your rights, so nothing else is looked for: no file of the working folder, no run folder.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.engines import ENGINES
from bsvi.tables.estimators import ESTIMATORS
from bsvi.tables.likelihoods import LIKELIHOODS
from bsvi.tables.methods import METHODS
from bsvi.tables.streams import STREAMS
from bsvi.tables.table import Table

VARIABLE = "BSVI_PLUGINS"
TABLES: tuple[Table[Any], ...] = (METHODS, DATA_SETS, LIKELIHOODS, ESTIMATORS, ENGINES, STREAMS)


def load_plugins() -> None:
    """Import what ``BSVI_PLUGINS`` names, once; runs that this process starts get the same, from any folder."""
    words = [word for word in os.environ.get(VARIABLE, "").split(",") if word]
    if not words:
        return
    os.environ[VARIABLE] = ",".join(str(Path(word).absolute()) if _is_file(word) else word for word in words)
    for word in words:
        try:
            _load_file(Path(word).absolute()) if _is_file(word) else importlib.import_module(word)
        except Exception as error:
            raise ValueError(f"{VARIABLE}: {word} cannot be imported: {_describe(error)}") from error
    for table in TABLES:
        if changed := [name for name, row in table.built_in.items() if table.get(name) is not row]:
            raise ValueError(
                f"{VARIABLE} changes the {table.concept} {changed[0]!r}, which is built in; choose another name"
            )


def _is_file(word: str) -> bool:
    return word.endswith(".py") or os.sep in word


def _load_file(path: Path) -> None:
    if path.stem in sys.modules:
        if getattr(sys.modules[path.stem], "__file__", None) == str(path):
            return
        raise ImportError(f"there is another module {path.stem!r}; give the file another name")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no file of Python")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise


def _describe(error: Exception) -> str:
    """The error, and the place in the module where it was raised."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    place = traceback.extract_tb(error.__traceback__)[-1]
    at = (
        ""
        if "importlib" in place.filename or place.filename == __file__
        else f" ({place.filename}, line {place.lineno})"
    )
    return f"{type(error).__name__}: {error}{at}"
