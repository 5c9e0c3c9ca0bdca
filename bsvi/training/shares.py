"""A process's share of a batch, computed as if it stood in the whole: its random numbers and its batch statistics.

Every process draws the noise of the whole batch and keeps the rows of its own examples, so an example's draws do not depend
on how many processes there are, and the random state stays the same in all. BatchNorm in train mode takes mean and variance
over the examples of all processes. What the decoder does is left alone: it may know one example at a time only.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bsvi.draws import Proposal, T, closed_form_kl
from bsvi.examples import Nested, count, each
from bsvi.model import Model, call_with_x, uses_x
from bsvi.objectives import BadInput, Estimate, Objective
from bsvi.theta import ThetaRule
from bsvi.trajectory import Trajectory


@dataclass(frozen=True)
class BatchPart:
    """Rows ``start`` to ``stop`` of a batch of ``total``; ``sum`` adds a tensor over all processes, with its gradient."""

    start: int
    stop: int
    total: int
    sum: Callable[[Tensor], Tensor]


class WholeBatchMode(TorchFunctionMode):
    """While entered, what torch draws along ``axis`` of the batch, and BatchNorm's statistics, are those of the whole batch.

    Numbers of another shape are drawn as always, the same by every process. Laws that torch samples by rejection (Gamma,
    Beta, Dirichlet) are drawn by each process for itself: valid draws, but not those of one process.
    """

    def __init__(self, part: BatchPart, axis: int) -> None:
        super().__init__()
        self.part, self.axis = part, axis

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Within this context the mode is not entered."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:
            return self.batch_norm(*args, **kwargs)
        if kwargs.get("generator") is not None:  # a generator of the model's own: not ours to replace
            return func(*args, **kwargs)
        if func in _MAKE:
            size = tuple(kwargs.pop("size", None) or (args[0] if args and not isinstance(args[0], int) else args))
            return (
                self.take_rows(func(self.whole_shape(size), **kwargs)) if self.is_shared(size) else func(size, **kwargs)
            )
        if func in _LIKE and self.is_shared(args[0].shape):
            return self.take_rows(func(args[0].new_empty(self.whole_shape(args[0].shape)), *args[1:], **kwargs))
        if func in _IN_PLACE and self.is_shared(args[0].shape):
            drawn = func(args[0].new_empty(self.whole_shape(args[0].shape)), *args[1:], **kwargs)
            return args[0].copy_(self.take_rows(drawn))
        if func is torch.multinomial and args[0].ndim == 2 and self.is_shared(args[0].shape):
            return self.take_rows(func(self.place_among_others(args[0]), *args[1:], **kwargs))
        if func in _DROPOUT and (args[2:] or (kwargs.get("training", True),))[0] and self.is_shared(args[0].shape):
            ones = args[0].new_ones(self.whole_shape(args[0].shape))
            return args[0] * self.take_rows(func(ones, *args[1:2], **{**kwargs, "training": True, "inplace": False}))
        return func(*args, **kwargs)

    def place_among_others(self, chances: Tensor) -> Tensor:
        """The rows in a whole batch's matrix. The other rows' values do not matter, only that numbers are drawn for them; the
        layout does, as torch draws in the order in which the matrix lies in memory."""
        whole = self.whole_shape(chances.shape)
        filled = chances.new_ones(whole) if chances.is_contiguous() else chances.new_ones(whole[::-1]).T
        filled[self.part.start : self.part.stop] = chances
        return filled

    def is_shared(self, shape: tuple[int, ...]) -> bool:
        return len(shape) > self.axis and shape[self.axis] == self.part.stop - self.part.start

    def whole_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[: self.axis], self.part.total, *shape[self.axis + 1 :])

    def take_rows(self, drawn: Tensor) -> Tensor:
        return drawn.narrow(self.axis, self.part.start, self.part.stop - self.part.start)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """BatchNorm; in train mode over all processes' examples, one sum over processes each way."""
        if not training:
            return functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        share = (self.part.stop - self.part.start) / self.part.total
        axes, shape = [0, *range(2, x.ndim)], (1, -1, *(1,) * (x.ndim - 2))
        var, mean = torch.var_mean(x, axes, correction=0)
        moments = torch.cat([mean.double(), var.double() + mean.double().square()]) * share
        mean, square = self.part.sum(moments).chunk(2)
        var = square - mean.square()  # in float64, where the difference of two large numbers is exact enough
        if running_mean is not None and running_var is not None:
            count = self.part.total * math.prod(x.shape[2:])
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean), momentum)
                running_var.lerp_((var * (count / max(1, count - 1))).to(running_var), momentum)
        scale = (var + eps).rsqrt().to(x) * (1.0 if weight is None else weight)
        y = (x - mean.to(x).view(shape)) * scale.view(shape)
        return y if bias is None else y + bias.view(shape)


class SharedModel:
    """A ``Model`` that encodes and draws as in the whole batch; the rest, its parameters too, is the model's own."""

    def __init__(self, model: Any, part: BatchPart) -> None:
        self.model, self.part = model, part
        self.original = model  # what check_model looks at
        self.inside: WholeBatchMode | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @contextmanager
    def enter(self, axis: int) -> Iterator[None]:
        with WholeBatchMode(self.part, axis) as self.inside:
            try:
                yield
            finally:
                self.inside = None

    def encode(self, x: Nested) -> Tensor:
        with self.enter(0):
            return self.model.encode(x)

    def posterior(self, lambda_: Tensor, x: Nested = None) -> Proposal:
        return Proposal(call_with_x(self.model.posterior, lambda_, x), self)

    def draw(self, sampler: Callable[[], T], rows: int) -> T:
        """What Proposal asks for: (draws, batch, ...), with the noise of this part."""
        with self.enter(1):
            return sampler()

    def log_lik(self, x: Nested, z: Tensor) -> Tensor:
        if self.inside is None:
            return self.model.log_lik(x, z)
        with self.inside.suspend():  # a decoder has no noise, and may be compiled, which the mode would break
            return self.model.log_lik(x, z)

    def kl(self, q: Proposal, x: Nested = None) -> Tensor | None:
        return closed_form_kl(self.model, q.q, x)

    @property
    def uses_x(self) -> bool:
        return uses_x(self.model)


@dataclass(frozen=True)
class SharedRule(ThetaRule):
    """A rule for theta whose resampling is that of the whole batch."""

    rule: ThetaRule

    def __post_init__(self) -> None:
        vars(self).update(attach=self.rule.attach, budget=self.rule.budget)

    def __call__(self, model: Model, x: Nested, beta: float, trajectory: Trajectory, r: Tensor) -> Tensor | float:
        if not isinstance(model, SharedModel):
            raise TypeError(f"a shared rule needs a shared model, got {type(model).__name__}")
        with model.enter(0):
            return self.rule(model, x, beta, trajectory, r)

    def count_taught(self, rows: int, samples: int) -> int:
        return self.rule.count_taught(rows, samples)

    def decoder_calls(self, rows: int) -> int:
        return self.rule.decoder_calls(rows)


class SharedBound(nn.Module):
    """The bound of this process's equal share of a batch: the module around which DistributedDataParallel goes.

    Its parameters are those of model and objective (pi's logits); inside, SVI takes its gradients from the raw modules.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, rank: int, size: int, sum_: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.model, self.objective = model, copy.copy(objective)  # the same modules, with another rule
        self.objective.theta = SharedRule(objective.theta)
        self.rank, self.size, self.sum = rank, size, sum_

    def forward(self, x: Nested, beta: float) -> Estimate:
        n = count(x)
        shared: Any = SharedModel(self.model, BatchPart(self.rank * n, (self.rank + 1) * n, self.size * n, self.sum))
        try:
            return self.objective(shared, x, beta)
        except BadInput:  # told when all processes are at the end of the step: they must not wait for this one
            estimate = self.objective(shared, each(x, lambda part: part.nan_to_num(0.0, 0.0, 0.0)), beta)
            return replace(estimate, loss=estimate.loss * math.nan, bound=estimate.bound * math.nan)


_MAKE = {torch.randn, torch.rand}
_LIKE = {torch.randn_like, torch.rand_like}
_IN_PLACE = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_, torch.Tensor.cauchy_}
_DROPOUT = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
