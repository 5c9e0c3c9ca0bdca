"""Which model is this? A digest of everything besides its tensors that can decide a number: code, settings, distributions.

Two models with equal weights may be two functions: another prior or family, an overridden method, a ReLU in place of a Tanh,
a lambda that closes over another constant. A store of finished examples is asked for by all of it, so that it never answers
for another model. What comes with Python, torch, numpy and installed packages counts by its name (and the package's version).

An object may say itself what it is: a text in its attribute ``store_key`` stands for all of it but its tensors.
"""

import functools
import hashlib
import types
import weakref
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Transform
from torch.distributions.utils import lazy_property

from bsvi.checks.closures import Parts, find_library_version
from bsvi.checks.describe_code import CODE_DESCRIBERS, number_parts
from bsvi.model import VAE, DiagonalGaussian


def identify(model: Any, **others: Any) -> dict[str, str]:
    """Part of the model (or other thing that decides a number) -> digest; empty where all of it is bsvi's own.

    >>> one, other = (VAE(nn.Linear(3, 4), lambda x, z, a=a: -a * z.square().sum(-1)) for a in (1.0, 2.0))
    >>> [name for name in identify(one) if identify(one)[name] != identify(other)[name]]
    ['decoder.a']
    """
    registered = {}
    if isinstance(model, nn.Module):
        registered = {id(value): name for name, value in [*model.named_parameters(), *model.named_buffers()]}
    walk = _DigestWalk(registered)
    if not is_plain(model):
        walk.take(model, ())
    for name, thing in others.items():
        if thing is not None and not type(thing).__module__.startswith("bsvi."):  # whose fields are in the question
            walk.take(thing, (name,))
    return {".".join(name) or "model": digest.hexdigest()[:16] for name, digest in walk.digests.items()}


def is_plain(model: Any) -> bool:
    """Whether the weights alone tell: a VAE of bsvi's own networks, as the command line makes them."""
    return (
        type(model).__module__ == VAE.__module__
        and model.family is DiagonalGaussian
        and model.prior is None
        and all(type(part).__module__.startswith("bsvi.nets") for part in (model.encoder, model.decoder))
        and all(find_library_version(type(module).__module__) is not None for module in model.modules())
        and not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
        and not {"encode", "posterior", "log_prior", "log_lik", "kl"} & vars(model).keys()
    )


class _DigestWalk:
    """Goes through all that a thing is made of; ``digests`` has one digest for each of its parts, two names deep."""

    def __init__(self, registered: dict[int, str]) -> None:
        self.digests: dict[tuple[str, ...], Any] = defaultdict(hashlib.sha256)
        self.registered, self.seen = registered, dict[int, int]()
        self.kept: list[Any] = []  # so that no id is used twice

    def take(self, thing: Any, path: tuple[str, ...]) -> None:
        digest = self.digests[path[:2]]
        if id(thing) in self.registered:
            digest.update(f"{path[-1:]}: the model's {self.registered[id(thing)]}\n".encode())
            return
        if id(thing) in self.seen:
            digest.update(f"{path[-1:]}: number {self.seen[id(thing)]}\n".encode())
            return
        try:
            content, parts = describe(thing)
        except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
            raise ValueError(
                f"store= cannot tell this model from another: {'.'.join(path) or 'the model'} is a "
                f"{type(thing).__qualname__} ({str(error).splitlines()[0]}); give the object that holds it an attribute "
                "store_key, a text that says which it is, or leave store out"
            ) from None
        if parts:
            self.seen[id(thing)] = len(self.seen)
            self.kept.append(thing)
        digest.update(f"{path[-1:]}: {len(parts)} {len(content)} ".encode() + content)
        for name, part in parts:
            self.take(part, (*path, name))


def describe(thing: Any) -> tuple[bytes, Parts]:
    """A thing's own text, and its parts."""
    kind = type(thing)
    if thing is None or kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        slice,
        type(...),
        torch.dtype,
        torch.Size,
    ):
        return f"{kind.__name__} {thing!r}".encode(), []
    if isinstance(thing, torch.device | torch.layout | torch.memory_format | weakref.ref | types.ModuleType):
        return f"{kind.__name__} {getattr(thing, '__name__', '')}".encode(), []
    if isinstance(key := getattr(thing, "store_key", None), str) and not isinstance(thing, type):
        state = thing.state_dict() if isinstance(thing, nn.Module) else {}
        return f"store_key {key}".encode(), [(name, v) for name, v in state.items() if isinstance(v, Tensor)]
    if hasattr(thing, "_torchdynamo_orig_callable"):  # what torch.compile returned
        return b"compiled", [("original", getattr(thing, "_orig_mod", thing._torchdynamo_orig_callable))]
    if isinstance(thing, Tensor):
        value = thing.detach().cpu().contiguous()
        head = f"tensor {value.dtype} {tuple(value.shape)} ".encode()
        return head + value.reshape(-1).view(torch.uint8).numpy().tobytes(), []
    if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
        return f"array {thing.dtype} {thing.shape} ".encode() + np.ascontiguousarray(thing).tobytes(), []
    for kinds, describer in _DESCRIBERS:
        if kind in kinds if describer in (_of_list, _of_dict, _of_set) else isinstance(thing, kinds):
            return describer(thing)
    made = thing.__reduce_ex__(4)  # as pickle would take it apart
    if isinstance(made, str):
        return f"{kind.__module__} {made}".encode(), []
    maker, arguments, state, items, pairs = (*made, None, None, None)[:5]
    parts = [("made by", maker), *number_parts(arguments), *_attributes(kind, state)]
    return b"object", [*parts, *number_parts(items or ()), *number_parts(pairs or ())]


def _attributes(kind: type, state: Any) -> Parts:
    """An object's state by name, without what it has only computed from the rest."""
    if not isinstance(state, dict):
        return [] if state is None else [("state", state)]
    drop = {name for name in state if isinstance(getattr(kind, str(name), None), functools.cached_property)}
    drop |= {"_cached_x_y"} if issubclass(kind, Transform) else set()
    return sorted(((str(name), value) for name, value in state.items() if name not in drop), key=lambda pair: pair[0])


def _of_list(thing: list[Any] | tuple[Any, ...]) -> tuple[bytes, Parts]:
    return type(thing).__qualname__.encode(), number_parts(thing)


def _of_dict(thing: dict[Any, Any]) -> tuple[bytes, Parts]:
    if all(isinstance(key, str) for key in thing):
        return b"dict", sorted(thing.items())
    return b"dict", number_parts(thing.items())


def _of_set(thing: set[Any] | frozenset[Any]) -> tuple[bytes, Parts]:
    def one(part: Any) -> str:
        walk = _DigestWalk({})
        walk.take(part, ("element",))
        return walk.digests[("element",)].hexdigest()

    return " ".join(["set", *sorted(map(one, thing))]).encode(), []


def _of_module(thing: nn.Module) -> tuple[bytes, Parts]:
    if isinstance(thing, torch.jit.ScriptModule):
        sources = [f"{name}: {getattr(part, 'code', '')}" for name, part in thing.named_modules()]
        return "\n".join(["script", *sources]).encode(), sorted(thing.state_dict(keep_vars=True).items())
    try:
        state = thing.__getstate__()
    except RuntimeError:  # parametrized modules do not want to be pickled
        state = vars(thing)
    if not isinstance(state, dict):
        return b"module", [("class", type(thing)), ("state", state)]
    own = {name: value for name, value in state.items() if name not in _MODULE}
    own |= {name: part for group in ("_parameters", "_buffers", "_modules") for name, part in state[group].items()}
    hooks = [hook for group in ("_forward_hooks", "_forward_pre_hooks") for hook in state[group].values()]
    parts = [("class", type(thing)), ("training", thing.training), *_attributes(type(thing), own)]
    return b"module", [*parts, *(("hook", hook) for hook in hooks)]


def _of_distribution(thing: Distribution) -> tuple[bytes, Parts]:
    for name in dir(type(thing)):
        if isinstance(getattr(type(thing), name, None), lazy_property):
            getattr(thing, name)  # else it would be a part only once it has been used
    return b"distribution", [("class", type(thing)), *_attributes(type(thing), vars(thing))]


_MODULE = set(vars(nn.Module())) | {"_compiled_call_impl"}
_DESCRIBERS: list[tuple[Any, Any]] = [
    ((list, tuple), _of_list),  # these three by their exact type: what derives from them may hold more
    ((dict,), _of_dict),
    ((set, frozenset), _of_set),
    (nn.Module, _of_module),
    (Distribution, _of_distribution),
    *CODE_DESCRIBERS,
]
