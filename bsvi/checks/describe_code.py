"""What code is made of: the text and the parts of a class, a function, a method, a property."""

import functools
import types
from typing import Any

from torch.distributions.utils import lazy_property

from bsvi.checks.closures import Parts, find_globals, find_library_version, list_held

# modules under the names that stores know, so that those stay valid
_FIRST_NAMES = {
    "bsvi.refinement": "bsvi.refine",
    "bsvi.amortized": "bsvi.refine",
    "bsvi.evaluation.climb": "bsvi.evaluation.gap",
}


def number_parts(things: Any) -> Parts:
    """The things by their number."""
    return [(str(i), thing) for i, thing in enumerate(things)]


def _name(thing: Any) -> str:
    return f"{_FIRST_NAMES.get(thing.__module__, thing.__module__)}.{thing.__qualname__}"


def _of_class(thing: type) -> tuple[bytes, Parts]:
    name = _name(thing)
    if (version := find_library_version(thing.__module__)) is not None:
        return f"class {name} {version}".encode(), []
    values = ((key, value) for key, value in vars(thing).items() if callable(value) or not key.startswith("__"))
    parts = [(key, value) for key, value in values if key != "_abc_impl"]
    return f"class {name}".encode(), [*number_parts(thing.__bases__), *sorted(parts, key=lambda pair: pair[0])]


def _of_function(thing: types.FunctionType) -> tuple[bytes, Parts]:
    version = find_library_version(thing.__module__ or "")
    name = _name(thing)
    if version is not None and "<locals>" not in thing.__qualname__ and "<lambda>" not in thing.__qualname__:
        return f"function {name} {version}".encode(), []
    held = [*list_held(thing), ("attributes", vars(thing))]
    if version is not None:
        return f"function {name} {version}".encode(), held
    return b"function", [("code", thing.__code__), *held, *sorted(find_globals(thing).items())]


def _of_code(thing: types.CodeType) -> tuple[bytes, Parts]:
    flags = f"code {thing.co_argcount} {thing.co_posonlyargcount} {thing.co_kwonlyargcount} {thing.co_flags} {thing.co_names} "
    return flags.encode() + thing.co_code, number_parts(thing.co_consts)


def _of_method(thing: types.MethodType) -> tuple[bytes, Parts]:
    return b"method", [("function", thing.__func__), ("self", thing.__self__)]


def _of_builtin(thing: Any) -> tuple[bytes, Parts]:
    owner = getattr(thing, "__self__", None)
    parts = [] if owner is None or isinstance(owner, types.ModuleType) else [("self", owner)]
    return f"builtin {getattr(thing, '__module__', '')} {thing.__qualname__}".encode(), parts


def _of_property(thing: property) -> tuple[bytes, Parts]:
    return b"property", [("get", thing.fget)]


def _of_wrapper(thing: Any) -> tuple[bytes, Parts]:
    return type(thing).__name__.encode(), [("function", thing.__func__)]


def _of_cached(thing: Any) -> tuple[bytes, Parts]:
    return b"property", [("get", getattr(thing, "func", None) or getattr(thing, "wrapped", None))]


_BUILTIN = (types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType)
CODE_DESCRIBERS: list[tuple[Any, Any]] = [
    (type, _of_class),
    (types.FunctionType, _of_function),
    (types.MethodType, _of_method),
    (types.CodeType, _of_code),
    ((*_BUILTIN, types.GetSetDescriptorType, types.MemberDescriptorType), _of_builtin),
    (property, _of_property),
    ((classmethod, staticmethod), _of_wrapper),
    ((functools.cached_property, lazy_property), _of_cached),
]
