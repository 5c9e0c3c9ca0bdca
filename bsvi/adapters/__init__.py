"""Models made by other libraries as a ``bsvi.Model``: each adapter is imported when it is used, and so is its library."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bsvi.adapters.from_pyro import pyro
    from bsvi.adapters.from_pythae import pythae
    from bsvi.adapters.from_scvi import scvi

_HOME = {"pyro": "from_pyro", "pythae": "from_pythae", "scvi": "from_scvi"}

__all__ = ["pyro", "pythae", "scvi"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bsvi.adapters' has no attribute {name!r}; there are {', '.join(__all__)}")
    value = getattr(import_module(f"bsvi.adapters.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
