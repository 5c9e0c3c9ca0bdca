"""The library that an adapter is for: imported when it is asked for, named in one line where it is missing."""

from importlib import import_module
from types import ModuleType


def library(extra: str, module: str) -> ModuleType:
    """The module, or ImportError that names the extra.

    >>> library("pyro", "no_such_library")
    Traceback (most recent call last):
    ...
    ImportError: bsvi.adapters.pyro needs no_such_library: pip install 'bsvi[pyro]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ImportError(f"bsvi.adapters.{extra} needs {error.name}: pip install 'bsvi[{extra}]'") from None
