"""Networks that a model uses but does not hold: in a closure, a default argument, a partial, a list, a global variable.

``model.parameters()`` does not have them, so nobody would train, move, save or hash them, or put them into evaluation mode.
"""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from bsvi.checks.closures import find_attributes, find_globals, find_library_version, list_held
from bsvi.model import VAE

METHODS = ("forward", "encode", "posterior", "log_prior", "log_lik", "kl")  # what is called while a model is used
VAES = ("encoder", "decoder", "family", "prior")


def check_nothing_hidden(model: nn.Module) -> None:
    """Raise, with what to write, where a parameter that wants a gradient is used by ``model`` and not among its own.

    >>> from bsvi import VAE
    >>> net = nn.Bilinear(3, 2, 1)
    >>> check_nothing_hidden(VAE(nn.Linear(3, 4), lambda x, z, net=net: net(x, z).sum(-1)))
    Traceback (most recent call last):
    ...
    ValueError: decoder uses a network that the model does not hold, net (Bilinear): it would not be trained, ...
    """
    for place, name, thing in find_hidden(model):
        kind = f"{name} ({type(thing).__name__})"
        raise ValueError(
            f"{place} uses a network that the model does not hold, {kind}: it would not be trained, moved, saved or put into "
            f"evaluation mode; make {place} a torch.nn.Module with {name} as its attribute (bsvi.wrap takes module={name}), or, "
            "if it is to stay as it is, call requires_grad_(False) on it"
        )


def find_hidden(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Where, by which name, and what."""
    search = _Search({id(parameter) for parameter in model.parameters()})
    for path, module in model.named_modules():
        given = vars(module) if find_library_version(type(module).__module__) is not None else {}
        names = VAES if isinstance(module, VAE) else getattr(type(module), "given_functions", ())
        given = {name: vars(module).get(name) for name in names} if names else given
        for name, value in list(given.items()):
            if callable(value) or isinstance(value, Distribution):
                yield from search.look(f"{path}.{name}".strip("."), name, value)
        for name in METHODS:
            function = inspect.getattr_static(type(module), name, None)
            if isinstance(function, types.FunctionType):
                yield from search.function(path or type(module).__name__, function, module)


class _Search:
    def __init__(self, known: set[int]) -> None:
        self.known, self.seen = known, set[tuple[int, int]]()

    def look(self, place: str, name: str, thing: Any) -> Iterator[tuple[str, str, Any]]:
        """What is hidden in a thing that is used, called ``name`` there."""
        if isinstance(thing, nn.Module):
            if any(p.requires_grad and id(p) not in self.known for p in thing.parameters()):
                yield place, name, thing
        elif isinstance(thing, Tensor):
            if any(isinstance(leaf, nn.Parameter) and id(leaf) not in self.known for leaf in find_leaves(thing)):
                yield place, name, thing
        elif isinstance(thing, types.FunctionType):
            yield from self.function(place, thing, None)
        elif isinstance(thing, types.MethodType):
            if isinstance(thing.__self__, nn.Module):
                yield from self.look(place, name, thing.__self__)
            if isinstance(thing.__func__, types.FunctionType):
                yield from self.function(place, thing.__func__, thing.__self__)
        elif isinstance(thing, functools.partial):
            for key, part in [(name, thing.func), *((name, a) for a in thing.args), *thing.keywords.items()]:
                yield from self.look(place, key, part)
        elif isinstance(thing, list | tuple | set | frozenset | dict):
            for part in list(thing.values() if isinstance(thing, dict) else thing):
                yield from self.look(place, name, part)
        elif isinstance(thing, Distribution):
            for part in vars(thing).values():
                if isinstance(part, Tensor | Distribution):
                    yield from self.look(place, name, part)
        elif callable(thing) and not isinstance(thing, type) and find_library_version(type(thing).__module__) is None:
            call = inspect.getattr_static(type(thing), "__call__", None)
            if isinstance(call, types.FunctionType):
                yield from self.function(place, call, thing)

    def function(self, place: str, function: types.FunctionType, owner: Any) -> Iterator[tuple[str, str, Any]]:
        """What is hidden in what a function reaches; of its owner, and of other objects, in the attributes that it names."""
        if (id(function), id(owner)) in self.seen:
            return
        self.seen.add((id(function), id(owner)))
        ours = find_library_version(function.__module__ or "") is None
        reached = [*list_held(function), *(find_globals(function).items() if ours else ())]
        names = find_attributes(function) if ours else set()
        for name, thing in reached:
            yield from self.look(place, name, thing)
            yield from self.attributes(place, thing, names)
        if ours and owner is not None:
            yield from self.attributes(place, owner, names)

    def attributes(self, place: str, thing: Any, names: set[str]) -> Iterator[tuple[str, str, Any]]:
        if isinstance(thing, type | types.ModuleType) or find_library_version(type(thing).__module__) is not None:
            return
        for name in sorted(names):
            value = getattr(thing, "__dict__", {}).get(name)
            method = inspect.getattr_static(type(thing), name, None)
            method = method.fget if isinstance(method, property) else method
            if value is not None:
                yield from self.look(place, name, value)
            elif isinstance(method, types.FunctionType):
                yield from self.function(place, method, thing)


def find_leaves(tensor: Tensor) -> Iterator[Any]:
    """The tensors that a tensor was computed from, as far as they want a gradient."""
    if not tensor.requires_grad:
        return
    if tensor.grad_fn is None:
        yield tensor
    nodes, seen = [tensor.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [below for below, _ in node.next_functions]
