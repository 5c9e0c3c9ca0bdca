"""Noise that belongs to an example: a function of (seed, example id, stream, draw), with no state and no order of calls.

An example then gets the same draws in any batch, beside any other example and in any process, so that evaluation gives
the same numbers however it is cut. The bits come from the splitmix64 finaliser in torch's integer arithmetic, so it
runs on every device.
"""

import math
from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bsvi.draws import Proposal, T, closed_form_kl
from bsvi.examples import Nested
from bsvi.model import Model, call_with_x, uses_x

_WORD = 2**64 - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_BLOCK = 1 << 15  # numbers made at once: fewer, larger calls, and 256 kB at most where one draw is not larger itself


def mix(words: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """The words scrambled: a bijection on 64 bits whose output bits all depend on all input bits.

    >>> mix(torch.tensor([1, 2]))
    tensor([ 6238072747940578789, -2606959012126976886])
    """
    words = (words ^ _shift(words, 30)) * _FIRST
    words = (words ^ _shift(words, 27)) * _SECOND
    return words ^ _shift(words, 31)


def _shift(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & ((1 << (64 - bits)) - 1)  # torch's shift carries the sign; a logical one is meant


class Noise:
    """The random numbers of the examples ``ids``; ``words`` name the stream, and other words give independent numbers.

    Draw ``i`` of an example is the same whether it is asked for alone or with others; normal and uniform numbers, and rows
    of another size, share no bits.

    >>> noise = Noise(torch.tensor([7, 9]), 0)
    >>> bool((noise.normal(0, 4, 3)[2] == noise.normal(2, 1, 3)[0]).all())
    True
    """

    def __init__(self, ids: Int64[Tensor, " batch"], *words: int) -> None:
        self.keys = mix(ids + GOLDEN)
        for word in words:
            self.keys = mix(self.keys + GOLDEN) ^ mix(torch.full_like(ids, _signed(word & _WORD)) - GOLDEN)
        self.keys = mix(self.keys)

    def take(self, rows: Tensor) -> "Noise":
        """The noise of some of the examples."""
        other = copy(self)
        other.keys = self.keys[rows]
        return other

    def normal(
        self, first: int, draws: int, size: int, dtype: torch.dtype = torch.float64
    ) -> Float[Tensor, "draws batch size"]:
        """Standard normal numbers, rows ``first`` to ``first + draws - 1`` (Box-Muller, two numbers of every word)."""
        low, high = self._halves(first, draws, (size + 1) // 2, dtype, 1)
        radius, angle = (-2.0 * low.log()).sqrt(), (2.0 * math.pi) * high
        return torch.cat([radius * angle.cos(), radius * angle.sin()], -1)[..., :size]

    def uniform(
        self, first: int, draws: int, size: int, dtype: torch.dtype = torch.float64
    ) -> Float[Tensor, "draws batch size"]:
        """Numbers in (0, 1), never 0 or 1, for the same rows."""
        halves = torch.cat(self._halves(first, draws, (size + 1) // 2, dtype, 2), -1)[..., :size]
        return halves.clamp(max=1.0 - torch.finfo(dtype).eps / 2)  # a float32 cannot hold 1 - 2**-33

    def _halves(self, first: int, draws: int, words: int, dtype: torch.dtype, kind: int) -> tuple[Tensor, Tensor]:
        keys = mix(self.keys + _signed((4 * words + kind) * 0x9E3779B97F4A7C15 & _WORD))  # no word is used twice
        counter = torch.arange(first * words, (first + draws) * words, device=keys.device)
        counter = mix((counter + 1) * GOLDEN).view(draws, 1, words)
        bits = mix(counter ^ keys[:, None])
        low, high = (((half & 0xFFFFFFFF).to(dtype) + 0.5) * 2.0**-32 for half in (bits, bits >> 32))
        return low, high


class NoiseStream(TorchFunctionMode):
    """While entered, torch's normal and uniform numbers of shape (draws, batch, ...) are the examples' own.

    ``draw`` says how many rows are drawn, and the next one goes on after them, so chunks of any size give the same rows.
    Numbers of another shape, or of another law, come from torch's generator as always: ``measure`` notices.
    """

    def __init__(self, seed: int, stream: int, ids: Int64[Tensor, " batch"]) -> None:
        super().__init__()
        self.words, self.ids, self.position = (seed, stream), ids, 0
        self.noises: list[Noise] = []  # one per call within a draw: a family may ask for several kinds of numbers
        self.blocks: dict[tuple[Any, ...], tuple[int, Tensor]] = {}

    def draw(self, sampler: Callable[[], T], rows: int) -> T:
        """What ``sampler`` draws, ``rows`` rows for every example, with the examples' own noise."""
        self.rows, self.call = rows, 0
        with self:
            drawn = sampler()
        self.position += rows
        return drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:  # a generator of the family's own: not ours to replace
            return func(*args, **kwargs)
        if func in _MAKE:
            size = kwargs.get("size") or (args[0] if args and not isinstance(args[0], int) else args)
            options = {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
            if self._is_per_example(tuple(size)):
                return self._fill(torch.empty(tuple(size), **options), _MAKE[func])
        elif func in _LIKE and self._is_per_example(tuple(args[0].shape)):
            return self._fill(torch.empty_like(args[0], requires_grad=False), _LIKE[func])
        elif func in _IN_PLACE and self._is_per_example(tuple(args[0].shape)):
            kind, names, defaults = _IN_PLACE[func]
            a, b = (args[i + 1] if len(args) > i + 1 else kwargs.get(names[i], defaults[i]) for i in range(2))
            scale = b if kind == "normal" else b - a
            return self._fill(args[0], kind).mul_(scale).add_(a)
        return func(*args, **kwargs)

    def _is_per_example(self, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 2 and shape[:2] == (self.rows, len(self.ids)) and math.prod(shape) > 0

    def _fill(self, out: Tensor, kind: str) -> Tensor:
        while self.call >= len(self.noises):
            self.noises.append(Noise(self.ids, *self.words, len(self.noises)))
        size = out[0, 0].numel()
        key = (self.call, kind, size, out.dtype)
        start, block = self.blocks.get(key, (0, out[:0]))
        if not start <= self.position <= self.position + self.rows <= start + len(block):
            start, rows = self.position, max(self.rows, _BLOCK // (len(self.ids) * size))
            dtype = out.dtype if out.dtype in (torch.float32, torch.float64) else torch.float32
            block = getattr(self.noises[self.call], kind)(start, rows, size, dtype).to(out.dtype)
            self.blocks[key] = (start, block)
        self.call += 1
        at = self.position - start
        return out.copy_(block[at : at + self.rows].view(out.shape))


class KeyedModel:
    """A ``Model`` whose posterior draws with the noise of one stream of the examples ``ids``; the rest is the model's own."""

    def __init__(self, model: Model, seed: int, stream: int, ids: Int64[Tensor, " batch"]) -> None:
        self.model, self.stream = model, NoiseStream(seed, stream, ids)
        self.encode, self.log_prior, self.log_lik = model.encode, model.log_prior, model.log_lik
        self.slopes = getattr(model, "slopes", lambda x: None)

    def posterior(self, lambda_: Tensor, x: Nested = None) -> Proposal:
        return Proposal(call_with_x(self.model.posterior, lambda_, x), self.stream)

    def kl(self, q: Proposal, x: Nested = None) -> Tensor | None:
        return closed_form_kl(self.model, q.q, x)

    @property
    def uses_x(self) -> bool:
        return uses_x(self.model)


_MAKE = {torch.randn: "normal", torch.rand: "uniform"}
_LIKE = {torch.randn_like: "normal", torch.rand_like: "uniform"}
_IN_PLACE: dict[Any, tuple[str, tuple[str, str], tuple[float, float]]] = {
    torch.Tensor.normal_: ("normal", ("mean", "std"), (0.0, 1.0)),
    torch.Tensor.uniform_: ("uniform", ("from", "to"), (0.0, 1.0)),
}
