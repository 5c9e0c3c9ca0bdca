"""The processes that do one run together. Here: one alone, who has nobody to ask. Imports no torch by itself.

``bsvi.distributed`` has the team of several; training and evaluation are written for both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from bsvi.objectives import Estimate, Objective

T = TypeVar("T")
Problem = (
    tuple[bool, str] | None
)  # whether it came from elsewhere, so that the cause is told before what it caused; the line


class Team:
    """One process: whatever it finds is what all have found.

    >>> team = Team()
    >>> team.first, team.found(lambda: 3), team.word("SIGTERM")
    (True, 3, 'SIGTERM')
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def guarded(self) -> AbstractContextManager[None]:
        """Within this context the loss of another process is one clear line."""
        return nullcontext()

    def found(self, find: Callable[[], T]) -> T:
        """What the first process finds, for all; only it calls ``find``, and where that fails all fail."""
        return find()

    def in_turn(self, load: Callable[[], T]) -> T:
        """What ``load`` gives each process, the first one of every machine before the others: it may fetch files."""
        return load()

    def bound(self, model: Any, objective: "Objective") -> "Callable[[Any, float], Estimate]":
        """The objective as a function of x and beta, whose loss has the whole batch's gradient after backward."""
        return partial(objective, model)

    def look(self, model: Any, objective: "Objective", x: "Tensor") -> float:
        """The sum of the bounds of this process's part of a validation batch."""
        return objective(model, x).bound.sum().item()

    def agree(self, problem: Problem, asked: str, row: "Tensor") -> "tuple[Problem, str, Tensor]":
        """Of any process: a problem, a wish to stop; of all: the average of a row of numbers."""
        return problem, asked, row

    def word(self, asked: str) -> str:
        """A wish to stop that any process has."""
        return asked

    def total(self, value: float) -> float:
        """The sum over all processes."""
        return value

    def gather(self, rows: "Tensor") -> "Tensor":
        """The rows of all processes."""
        return rows
