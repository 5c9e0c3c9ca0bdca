"""The decoder's graphs along a walk: each is cut at z, and some stay for theta until ``backward``.

Below the cut lie theta's parameters, above it lambda and q's own. So what is kept for theta never leads to q, and what steers
lambda never leads to theta.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from bsvi.draws import Draw, Weighed, weigh_draw
from bsvi.examples import Nested, tensors
from bsvi.model import Model
from bsvi.parameters import find_reached_parameters, find_trainable, freeze


class Graphs:
    """Which decoder graphs of a walk stay for theta: those of the last ``attach`` of ``proposals``, or none.

    None where gradients are off, where they would take more than ``budget`` bytes (measured at the first proposal), and where
    the decoder has no parameter to train. ``kept`` says whether the bound leads to theta, so that it needs no other term.
    """

    def __init__(
        self,
        model: Model,
        x: Nested,
        beta: float,
        proposals: int,
        attach: int,
        budget: float,
    ) -> None:
        self.model, self.x, self.beta, self.proposals, self.budget = model, x, beta, proposals, budget
        self.attach = attach if torch.is_grad_enabled() else 0
        self.kept = self.attach > 0
        self.theta = find_trainable(model)

    def keeps(self, i: int) -> bool:
        """Whether the graph of proposal ``i`` stays."""
        return i >= self.proposals - self.attach

    def weigh(self, i: int, drawn: Draw, steers: bool) -> Weighed:
        """The weights of proposal ``i`` (Alg. 1, l.7): with a graph to z if the draw ``steers``, and to theta if it stays."""
        first = i == 0 and self.keeps(i)
        with GraphSize(first and self.budget < math.inf, list_shared_tensors(self.model, self.x)) as size:
            weighed = self.weigh_apart(drawn, steers, self.keeps(i))
        if first and all(leaf is weighed.z for leaf in find_reached_parameters(self.model, weighed.log_w)):
            self.attach = 0  # a decoder without parameters to train: nothing to keep
        elif first and self.attach * size.bytes > self.budget:
            self.attach, self.kept = 0, False
        return weighed

    def weigh_apart(self, drawn: Draw, steers: bool, keep: bool = False) -> Weighed:
        """The weights with a graph of their own, whose leaves are z and theta as far as they are asked for."""
        z = drawn.z.detach().requires_grad_(steers)
        with freeze([] if keep else self.theta), torch.set_grad_enabled(steers or keep):
            return weigh_draw(self.model, self.x, Draw(z, drawn.log_q.detach()), self.beta)


class GraphSize:
    """Counts the bytes that autograd keeps for backward of what runs inside, where ``measured`` says so.

    ``shared`` are tensors that every draw's graph holds, the decoder's weights above all: they are there once.
    """

    def __init__(self, measured: bool, shared: Iterable[Tensor] = ()) -> None:
        self.bytes = 0
        self._storages = {tensor.untyped_storage()._cdata for tensor in shared} if measured else set[int]()
        self._hooks = (
            torch.autograd.graph.saved_tensors_hooks(self._count, lambda saved: saved) if measured else nullcontext()
        )

    def _count(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage._cdata not in self._storages:  # views of one tensor are kept once; meta tensors have no data_ptr
            self._storages.add(storage._cdata)
            self.bytes += storage.nbytes()
        return saved

    def __enter__(self) -> "GraphSize":
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


def list_shared_tensors(model: object, x: Nested) -> Iterator[Tensor]:
    """What the graphs of all draws hold in common: the batch, the parameters and the buffers."""
    yield from (tensor for _, tensor in tensors(x))
    for name in ("parameters", "buffers"):
        held = getattr(model, name, None)
        yield from held() if callable(held) else ()
