"""Can a decoder be differentiated twice? Tried once, at the first step that is trained end to end.

torch's own operations can, or say that they cannot. A ``torch.autograd.Function`` of the user's own may lose second-order terms
in silence: its backward may detach, or run outside autograd. So where one is in the graph, the exact product of the Hessian with
a direction is compared with differences of gradients.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from bsvi.beyond.second_order import FixedNoise, gradient_by_differences

AGREES = 0.1  # relative error of the best of the examples; a kink (ReLU) between the two points spoils some, never all
NOISE = 0.01  # of a gradient by a parameter: less than this share may be the error of differences
_tried: WeakSet[Any] = WeakSet()  # apart from the refinements, which a store is asked for by
_WAY_OUT = "EndToEnd(..., finite_difference=True), or --e2e.finite-difference"


def is_tried(refinement: Any) -> bool:
    """Whether ``try_twice`` has been through with this refinement."""
    return refinement in _tried


def try_twice(
    refinement: Any,
    value_at: Callable[[Tensor], Tensor],
    noise: FixedNoise,
    value: Tensor,
    g: Tensor,
    at: Tensor,
    *,
    parameters: Callable[[], list[Tensor]],
) -> None:
    """Raise, naming the way out, where the decoder cannot be differentiated twice; warn where it loses terms. Once is enough.

    Args:
        refinement: what is tried once.
        value_at: each example's value at a lambda, with the noise that comes next.
        noise: the noise of ``value``.
        value: what the step climbs.
        g: its gradient at ``at``, with a graph of its own.
        at: lambda_i.
        parameters: all that the value depends on besides lambda, found only where they are needed.
    """
    functions = list(find_functions(value))
    once = next((f.__name__ for f in functions if is_marked_once(f)), "")
    reason = f"its Function {once} is marked once_differentiable" if once else ""
    try:
        if g.requires_grad:
            torch.autograd.grad(g.sum(), at, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120]
    if reason:
        raise ValueError(
            f"the decoder or q cannot be differentiated twice ({reason}); use finite differences: {_WAY_OUT}"
        )
    _tried.add(refinement)
    strange = sorted({f.__name__ for f in functions if not f.__module__.startswith("bsvi.")})
    if strange and not is_rough(at) and loses_terms(value_at, noise, value, g, at, parameters()):
        warnings.warn(
            f"the second derivative of {' or '.join(strange)} is not what differences of its gradients say (a backward that "
            f"detaches?), so end-to-end gradients lack terms; use finite differences: {_WAY_OUT}",
            stacklevel=2,
        )


def is_rough(at: Tensor) -> bool:
    """Whether differences of gradients would be noise, or there are no numbers at all (a plan's tensors without contents)."""
    return at.is_meta or torch.finfo(at.dtype).bits < 32 or torch.is_autocast_enabled(at.device.type)


def loses_terms(
    value_at: Callable[[Tensor], Tensor],
    noise: FixedNoise,
    value: Tensor,
    g: Tensor,
    at: Tensor,
    parameters: list[Tensor],
) -> bool:
    """Whether the derivative of g along a random direction differs from differences: by lambda in all examples, or where it is
    zero by a parameter whose difference is not."""
    v = torch.randn(at.shape, generator=torch.Generator().manual_seed(0)).to(at)
    of = [at, *parameters]
    first = differentiate(value.sum(), of)
    exact = differentiate((g * v).sum(), of)
    rough = differentiate((gradient_by_differences(value_at, noise, value, at, parameters) * v).sum(), of)
    error, size = (exact[0] - rough[0]).norm(dim=-1), rough[0].norm(dim=-1)
    if bool((error > AGREES * size + NOISE * g.detach().norm(dim=-1)).all()):
        return True
    noise_of = [NOISE * f.norm() * v.norm(dim=-1).mean() for f in first]
    by_parameter = list(zip(exact, rough, noise_of, strict=True))[1:]
    return any(bool(e.norm() == 0) and bool(r.norm() > least) for e, r, least in by_parameter)


def differentiate(value: Tensor, of: list[Tensor]) -> list[Tensor]:
    """The gradient of a value, zero where it does not depend."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in of]
    found = torch.autograd.grad(value, of, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(of, found, strict=True)]


def find_functions(value: Tensor) -> Iterator[type]:
    """The classes of the ``torch.autograd.Function``s in the graph of a value."""
    nodes = [value.grad_fn]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        function = getattr(node, "_forward_cls", None)
        if function is not None:
            yield function
        fresh = {below for below, _ in node.next_functions} - seen
        seen |= fresh
        nodes += fresh


def is_marked_once(function: type) -> bool:
    """Whether a Function forbids a second derivative.

    torch raises an error of its own only where the gradient that comes in has a graph; elsewhere it would lose a term in silence.
    """
    code = getattr(getattr(function, "backward", None), "__code__", None)
    return code is not None and code.co_filename == torch.autograd.function.__file__
