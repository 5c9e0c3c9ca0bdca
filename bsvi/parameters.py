"""A model's parameters: which of them learn, which a graph leads to, and contexts in which they rest."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


def find_trainable(model: object) -> list[Tensor]:
    """The model's parameters that want a gradient; none for a model that is no module."""
    parameters = getattr(model, "parameters", None)
    return [p for p in parameters() if p.requires_grad] if callable(parameters) else []


def find_reached_parameters(model: object, *values: Tensor) -> list[Tensor]:
    """The parameters that the graph of ``values`` leads to: the model's, or all leaves if it does not list any."""
    made = {p.grad_fn: p for p in find_trainable(model) if p.grad_fn is not None}  # parameters that are no leaves
    found: dict[int, Tensor] = {id(value): value for value in values if value.requires_grad and value.is_leaf}
    nodes = [value.grad_fn for value in values if value.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = made.get(node, getattr(node, "variable", None))
        if leaf is not None:
            found[id(leaf)] = leaf
            continue
        fresh = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= fresh
        nodes += fresh
    known = {id(p) for p in find_trainable(model)}
    return [leaf for key, leaf in found.items() if key in known or not known]


@contextmanager
def freeze(parameters: list[Tensor]) -> Iterator[None]:
    """Within this context the parameters want no gradient: for steps that need lambda's alone.

    Eager autograd leaves out by itself what nobody asks for, but a compiled decoder computes every gradient that is wanted.
    Parameters that are computed from others (``torch.func.functional_call``) cannot be told, and stay as they are.
    """
    leaves = [parameter for parameter in parameters if parameter.is_leaf]
    for parameter in leaves:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in leaves:
            parameter.requires_grad_(True)


@contextmanager
def in_eval_mode(model: object) -> Iterator[None]:
    """Within this context the model, if it is a module, is in eval mode; afterwards each of its parts is as it was."""
    modes = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    try:
        if isinstance(model, nn.Module):
            model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
