"""Runs of Pyro's models and guides: their traces with given latents, and log-probabilities of one row each."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution

from bsvi.adapters.own_noise import own_noise
from bsvi.adapters.sites import FAMILIES, is_fixed
from bsvi.examples import first

PyroSite = Mapping[str, Any]  # one statement of a trace


def trace_run(function: Callable[..., Any], x: Any, data: Mapping[str, Tensor], until: set[str] | None = None) -> Any:
    """The trace of a model or guide at x, with these values of its sites; it ends when all sites of ``until`` are there."""
    from pyro import poutine

    waiting = set(until or ())
    with (
        own_noise(first(x)),
        poutine.trace() as tracer,
        poutine.condition(data=dict(data)),
        _every_row(),
        _until(waiting),
    ):
        _call(function, x)
    return tracer.trace


def list_samples(trace: Any) -> dict[str, PyroSite]:
    """The sites that are sampled or observed, by name, without those that plates or ``pyro.deterministic`` make."""
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and type(site["fn"]).__name__ != "_Subsample"
        and not site["infer"].get("_deterministic", False)
    }


def as_torch(fn: Any) -> Any:
    """The distribution of a site by torch's own classes; None for a family whose parameters are not known."""
    base, transforms = _strip(fn), []
    if type(base).__name__ == "TransformedDistribution":
        base, transforms = _strip(base.base_dist), list(base.transforms)
    family = next((known for known in FAMILIES if _is_family(base, known)), None)
    if family is None or not all(map(is_fixed, transforms)):
        return None
    made = family(**{name: getattr(base, name) for name in FAMILIES[family]}, validate_args=False)
    made = TransformedDistribution(made, transforms, validate_args=False) if transforms else made
    inside = len(fn.event_shape) - len(made.event_shape)
    return Independent(made, inside) if inside else made


def _is_family(base: Any, family: type) -> bool:
    """Whether it is torch's class, or the one of the same name that Pyro makes of it."""
    kind = type(base)
    return kind is family or (kind.__module__ == "pyro.distributions.torch" and family in kind.__bases__)


def _strip(fn: Any) -> Any:
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return fn


def name_family(fn: Any) -> str:
    return type(_strip(fn)).__name__


def sum_per_row(name: str, value: Tensor, site: PyroSite, rows: int) -> Tensor:
    """The sum over all plates but that of the examples."""
    if value.shape == (rows,):
        return value
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized and frame.size == rows]
    if len(frames) != 1 or value.ndim < -frames[0].dim or value.shape[frames[0].dim] != rows:
        raise ValueError(
            f"site {name!r} of the model has log-probabilities of shape {tuple(value.shape)}, and not one for each of {rows} "
            "examples; put it into a plate of len(x) examples, and further dimensions into to_event"
        )
    return value.movedim(frames[0].dim, 0).reshape(rows, -1).sum(-1)


def _call(function: Callable[..., Any], x: Any) -> None:
    """Run it, until its end or until all is seen; parameters that want no gradient for a moment are no cause to warn."""
    with suppress(_AllSeenError), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was not registered in the param store")
        if isinstance(x, Mapping):
            function(**x)
        elif isinstance(x, tuple | list):
            function(*x)
        else:
            function(x)


def find_leaf(value: Any) -> Any:
    """The tensor that an optimizer would move: that of a constrained parameter before its transform."""
    return value.unconstrained() if hasattr(value, "unconstrained") else value


class _AllSeenError(Exception):
    """Ends a run of the model after its last latent."""


def _every_row() -> Any:
    """Within this context a plate takes all rows of x, in their order, however many draws they are of."""
    from pyro.poutine.messenger import Messenger

    class EveryRow(Messenger):
        def _pyro_sample(self, msg: Any) -> None:
            if (
                type(msg["fn"]).__name__ == "_Subsample"
                and msg["value"] is None
                and msg["fn"].subsample_size is not None
            ):
                msg["value"] = torch.arange(msg["fn"].subsample_size)

    return EveryRow()


def _until(names: set[str]) -> Any:
    """Within this context the model ends when all these sites are there; without names it runs to its end."""
    from pyro.poutine.messenger import Messenger

    class Until(Messenger):
        def _pyro_post_sample(self, msg: Any) -> None:
            if msg["name"] in names:
                names.remove(msg["name"])
                if not names:
                    raise _AllSeenError

    return Until()
