"""What a function reaches besides its arguments: closed-over variables, default arguments, globals."""

import dis
import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Parts = list[tuple[str, Any]]  # what a thing is made of, by name


def list_held(function: types.FunctionType) -> Parts:
    """What a function carries with it: the variables it closes over, and its default arguments."""
    code, defaults = function.__code__, function.__defaults__ or ()
    parts: Parts = list(
        zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    )
    parts += sorted((function.__kwdefaults__ or {}).items())
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts.append((name, cell.cell_contents))
        except ValueError:  # not filled yet
            parts.append((name, None))
    return parts


def find_globals(function: types.FunctionType) -> dict[str, Any]:
    """The global variables that a function reads, by name; of a module of the user's own, what may be read from it."""
    loaded, attributes = _find_names(function.__code__, "LOAD_GLOBAL", "LOAD_NAME"), find_attributes(function)
    found = {name: function.__globals__[name] for name in loaded if name in function.__globals__}
    for name, value in list(found.items()):
        if isinstance(value, types.ModuleType) and find_library_version(value.__name__) is None:
            found |= {f"{name}.{key}": getattr(value, key) for key in attributes if hasattr(value, key)}
    return found


def find_attributes(function: types.FunctionType) -> set[str]:
    """The names of all attributes that a function reads, of whatever object."""
    return _find_names(function.__code__, "LOAD_ATTR", "LOAD_METHOD")


def _find_names(code: types.CodeType, *operations: str) -> set[str]:
    return {step.argval for part in walk_code(code) for step in dis.get_instructions(part) if step.opname in operations}


def walk_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and all that is defined in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from walk_code(value)


@functools.cache
def find_library_version(module: str) -> str | None:
    """The version of the installed package that a module belongs to, empty for Python, torch, numpy and bsvi; else None."""
    top = module.partition(".")[0]
    if top in ("bsvi", "torch", "numpy") or top in sys.stdlib_module_names:
        return ""
    loaded = sys.modules.get(top)
    places = Path(getattr(loaded, "__file__", None) or "").parts
    return str(getattr(loaded, "__version__", "")) if {"site-packages", "dist-packages"} & set(places) else None
