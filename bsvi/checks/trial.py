"""Is this a model whose bound holds? Its four methods, nothing hidden, and a p(x|z) that is a function of x and z alone.

The last is tried, not guessed: ln p(x|z) of a few examples is computed twice, the second time beside other examples. Dropout
(in an attention or a recurrent layer, too), batch statistics or a power iteration then show themselves. It is done once for
each model, mode and kind of input. Neither the random state nor any buffer is changed.
"""

import sys
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bsvi.checks.hidden import METHODS, VAES, check_nothing_hidden
from bsvi.checks.identity import is_plain
from bsvi.draws import encode, posterior
from bsvi.examples import Nested, count, first, take, tensors

ROWS = 8  # examples that are tried
_done: dict[int, "PassedChecks"] = {}  # by the model's id


def check_model(model: object) -> None:
    """Raise, with what to do, if ``model`` is no Model, uses networks that it does not hold, or has a random decoder."""
    missing = [
        name for name in ("encode", "posterior", "log_prior", "log_lik") if not callable(getattr(model, name, None))
    ]
    if missing:
        raise TypeError(
            f"a model needs the methods encode, posterior, log_prior and log_lik; {type(model).__name__} lacks "
            f"{', '.join(missing)}; use bsvi.VAE(encoder, decoder)"
        )
    model = getattr(model, "original", model)
    if not isinstance(model, nn.Module) or torch.compiler.is_compiling():
        return
    known = find_passed(model)
    if (key := known.mode(model)) not in known.keys:
        check_nothing_hidden(model)
        check_layers(model)
        known.keys.add(key)


def check_layers(model: nn.Module) -> None:
    """Raise, with what to do, if the decoder has layers that are known to couple examples or to be random."""
    decoder = getattr(model, "decoder", None)
    for name, module in decoder.named_modules() if isinstance(decoder, nn.Module) else ():
        kind = f"{type(module).__name__} ({name or 'the decoder itself'})"
        if isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None):
            raise ValueError(
                f"the decoder's {kind} uses batch statistics: p(x|z) then depends on the batch and no bound holds; "
                "call model.decoder.eval(), or use GroupNorm or LayerNorm (the encoder may keep its BatchNorm)"
            )
        if isinstance(module, _DROPOUT) and module.training and module.p > 0:
            raise ValueError(
                f"the decoder's {kind} is active, so every draw is weighed by another p(x|z) and no bound holds; "
                "call model.decoder.eval(), or remove it"
            )


def check_repeats(model: Any, x: Nested, z: Tensor | None = None) -> None:
    """Raise, with what to do, if ln p(x|z) is not the same twice, or depends on the other examples of the batch.

    ``z`` has one latent for each example of x; without it they are drawn.
    """
    model = getattr(model, "original", model)
    if torch.compiler.is_compiling() or first(x).is_meta:
        return
    known = find_passed(model)
    kinds = tuple((name, tensor.shape[1:], tensor.dtype, tensor.device) for name, tensor in tensors(x))
    if (key := (known.mode(model), kinds, count(x) > 1)) not in known.keys:
        if not is_plain(model):  # bsvi's own networks are known
            with torch.no_grad(), restore_after(model, first(x).device):
                _try_twice(model, take(x, slice(ROWS)), z if z is None else z[:ROWS])
        known.keys.add(key)


def _try_twice(model: Any, x: Nested, z: Tensor | None) -> None:
    half = (count(x) + 1) // 2
    others = torch.arange(count(x), device=first(x).device)
    others[half:] = 0  # in place of the second half of the examples, the first one again
    try:
        z = posterior(model, encode(model, x), x).sample() if z is None else z.detach()
        once, beside = model.log_lik(x, z), model.log_lik(take(x, others), z[others])
        alike = are_equal(once[:half], beside[:half])
        again = once if alike else model.log_lik(x, z)
    except Exception:  # a decoder for whole batches only, say; what it is used for has its own errors
        return
    if alike:
        return
    names = list(find_suspects(model))
    where = f" (look at {', '.join(names[:3])})" if names else ""
    if are_equal(once, again):
        raise ValueError(
            f"ln p(x|z) of an example depends on the other examples of its batch{where}: no bound holds then; call eval() on "
            "that part, or use GroupNorm or LayerNorm in place of BatchNorm (the encoder may keep its own)"
        )
    raise ValueError(
        f"ln p(x|z) of the same x and z is not the same twice{where}: every draw is weighed by another p(x|z) and no bound "
        "holds; call eval() on that part (dropout, RReLU, spectral_norm and the like), or remove it"
    )


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two computations of the same numbers agree but for rounding."""
    reduced = one.is_cuda or torch.is_autocast_enabled(one.device.type) or one.dtype in (torch.float16, torch.bfloat16)
    one, other = one.double(), other.double()
    close = (one - other).abs() <= (1e-2 if reduced else 1e-4) * (1 + one.abs())
    return bool((close | ~(one.isfinite() | other.isfinite())).all())


def find_suspects(model: Any) -> Iterator[str]:
    """Layers that may be the reason, outside of the encoder."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        dropout = getattr(module, "dropout", 0.0)
        active = isinstance(dropout, float) and dropout > 0 and module.training
        random = module.training and isinstance(module, _DROPOUT | nn.RReLU)
        batch = isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None)
        hooks = module.training and any(type(h).__name__ == "SpectralNorm" for h in module._forward_pre_hooks.values())
        power = module.training and type(module).__name__ == "_SpectralNorm"
        if (active or random or batch or hooks or power) and not name.startswith("encoder"):
            yield f"{type(module).__name__} ({name})"


class PassedChecks:
    """What a model has passed already. It does not keep the model alive, nor anything of it."""

    def __init__(self, model: Any) -> None:
        self.model: Any = lambda: None
        with suppress(TypeError):  # an object that cannot be referred to weakly is tried every time
            self.model = weakref.ref(model, partial(_forget, id(model)))
        self.keys, self.layers = set[Hashable](), list[Any]()
        self.parts: tuple[int, ...] = ()

    def mode(self, model: Any) -> tuple[Hashable, ...]:
        """Which parts are in training mode, and what the model has been given. The list of its layers is kept: this is asked
        in every step."""
        given = getattr(model, "__dict__", {})  # of which counts and the like may change in every step
        parts = (*(id(given.get(name)) for name in (*VAES, *METHODS)), *map(id, given.get("_modules", {}).values()))
        layers = [layer() for layer in self.layers]
        if parts != self.parts or None in layers:
            layers = list(model.modules()) if isinstance(model, nn.Module) else []
            self.parts, self.layers = parts, [weakref.ref(layer) for layer in layers]
        return (parts, *[layer.training for layer in layers])


def find_passed(model: Any) -> PassedChecks:
    known = _done.get(id(model))
    if known is None or known.model() is not model:
        known = PassedChecks(model)
        if known.model() is model:
            _done[id(model)] = known
    return known


def _forget(key: int, _: Any) -> None:
    _done.pop(key, None)


@contextmanager
def restore_after(model: Any, device: torch.device) -> Iterator[None]:
    """Random state and buffers are afterwards as before; what torch.compile has made runs as it was written, uncompiled."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()] if isinstance(model, nn.Module) else []
    compiling = "torch._dynamo" in sys.modules
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.compiler.set_stance("force_eager") if compiling else nullcontext(),
    ):
        yield
    torch.clear_autocast_cache()  # it may hold copies of parameters that were made here, without a graph
    for buffer, value in kept:
        same = (buffer == value) | (buffer != buffer) & (value != value)  # NaN, too
        if not same.all():  # else it stays untouched: a graph may hold it for backward
            buffer.copy_(value)


_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_DROPOUT = nn.modules.dropout._DropoutNd
