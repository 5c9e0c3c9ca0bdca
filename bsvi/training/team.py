"""The processes that do one run together: which of them this is, how it ends, and the team of one, who has nobody to ask.

``bsvi.training.distributed`` has the team of several; training and evaluation are written for both. Imports no torch by itself.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from bsvi.examples import Nested
    from bsvi.objectives import Estimate, Objective

T = TypeVar("T")
# whether it came from elsewhere, so that the cause is told before what it caused; the line
Problem = tuple[bool, str] | None


class Team:
    """One process: whatever it finds is what all have found.

    >>> team = Team()
    >>> team.first, team.run_on_first(lambda: 3), team.agree_to_stop("SIGTERM")
    (True, 3, 'SIGTERM')
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def guard(self) -> AbstractContextManager[None]:
        """Within this context the loss of another process is one clear line."""
        return nullcontext()

    def run_on_first(self, find: Callable[[], T]) -> T:
        """What the first process finds, for all; only it calls ``find``, and where that fails all fail."""
        return find()

    def load_in_turn(self, load: Callable[[], T]) -> T:
        """What ``load`` gives each process, the first one of every machine before the others: it may fetch files."""
        return load()

    def make_bound(self, model: Any, objective: "Objective") -> "Callable[[Any, float], Estimate]":
        """The objective as a function of x and beta, whose loss has the whole batch's gradient after backward."""
        return partial(objective, model)

    def sum_bounds(self, model: Any, objective: "Objective", x: "Nested") -> float:
        """The sum of the bounds of this process's part of a validation batch."""
        return objective(model, x).bound.sum().item()

    def agree(self, problem: Problem, asked: str, row: "Tensor") -> "tuple[Problem, str, Tensor]":
        """Of any process: a problem, a wish to stop; of all: the average of a row of numbers."""
        return problem, asked, row

    def agree_to_stop(self, asked: str) -> str:
        """A wish to stop that any process has."""
        return asked

    def sum_over_processes(self, value: float) -> float:
        """The sum over all processes."""
        return value

    def gather(self, rows: "Tensor") -> "Tensor":
        """The rows of all processes."""
        return rows


@dataclass(frozen=True)
class Rank:
    """Which of several processes this one is: among all, and on its machine."""

    rank: int
    size: int
    local: int


def find_rank() -> Rank | None:
    """This process's place as torchrun's environment tells it; None for one process alone.

    >>> find_rank() is None
    True
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if any(name not in os.environ for name in names):
        return None
    try:
        rank, size, local = (int(os.environ[name]) for name in names[:3])
    except ValueError:
        raise ValueError(
            "RANK, WORLD_SIZE and LOCAL_RANK must be numbers; start with torchrun, or unset them"
        ) from None
    return Rank(rank, size, local) if size > 1 else None


def end_with_parent(number: int) -> None:
    """Ask the system (Linux) to send this process a signal when the one that started it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def end_process(place: Rank | None, code: int) -> int:
    """Return the exit code; one of several processes ends with it at once, without taking the interpreter apart.

    A thread of torch.distributed that is still at work at that moment aborts the process, now and then, and torchrun would
    take a finished run for a failed one.
    """
    if place is None:
        return code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)
