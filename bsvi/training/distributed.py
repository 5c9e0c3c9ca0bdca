"""One run on several devices: torchrun starts the processes, torch.distributed connects them, this is what they tell each other.

What is promised: the gradient is that of the whole batch, whatever the number of processes (``shares`` says how); all
hold the same parameters, random state and best weights at every step, stop at the same step and for the same reason; the
first one alone writes. When one is gone, the others end within a step.
"""

import re
import signal
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from bsvi.examples import Nested, count, take
from bsvi.objectives import Estimate, Objective, check_input
from bsvi.system import runtime
from bsvi.system.clock import Stopwatch
from bsvi.system.errors import FailedElsewhere
from bsvi.system.signals import STOPS
from bsvi.training.shares import BatchPart, SharedBound, SharedModel
from bsvi.training.team import Problem, Rank, T, Team, end_with_parent

STOP_REASONS = (*STOPS, "time")  # the reasons to stop that a process may have alone, first wins
PATIENCE = timedelta(hours=1)  # the longest that one process may keep the others waiting: a download, a slow disk


class RankLost(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


class Ranks(Team):
    """This process as one of several that torch.distributed has connected.

    A model with parameters that no loss reaches needs ``find_unused_parameters``, as DistributedDataParallel calls it.
    """

    find_unused_parameters = False

    def __init__(self, rank: int, size: int, local: int, device: torch.device) -> None:
        self.rank, self.size, self.local, self.device = rank, size, local, device

    @contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except RankLost:
            raise
        except RuntimeError as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "NCCL" in str(error):
                raise RankLost(describe_lost_process(error)) from None
            raise

    def run_on_first(self, find: Callable[[], T]) -> T:
        answer: list[Any] = [None, ""]
        if self.first:
            try:
                answer[0] = find()
            except Exception as error:
                answer[1] = str(error) or type(error).__name__
                dist.broadcast_object_list(answer, 0, device=self.device)
                raise
        dist.broadcast_object_list(answer, 0, device=self.device)
        if answer[1]:
            raise FailedElsewhere(answer[1])
        return answer[0]

    def load_in_turn(self, load: Callable[[], T]) -> T:
        value = load() if self.local == 0 else None
        self.sum_over_processes(0.0)
        return load() if value is None else value

    def make_bound(self, model: Any, objective: Objective) -> Callable[[Any, float], Estimate]:
        svi = getattr(objective.refinement, "svi", objective.refinement)
        if getattr(svi, "clip", "") == "batch":
            raise ValueError(
                "svi.clip batch couples the examples of a batch, which several processes share; use svi.clip example, "
                "or one process"
            )
        shared = SharedBound(model, objective, self.rank, self.size, Sum.apply)
        # said once of 1x1 convolutions, whose gradient lies in memory in another order: it is copied, and they are small
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the flag gets another name in torch 2.13
            return DistributedDataParallel(
                shared,
                device_ids=[self.device] if self.device.type == "cuda" else None,
                broadcast_buffers=False,  # BatchNorm's are the same everywhere, as its statistics are
                find_unused_parameters=self.find_unused_parameters,
            )

    def sum_bounds(self, model: Any, objective: Objective, x: Nested) -> float:
        check_input(x, 1.0, model)  # the whole batch: all processes fail together
        n = count(x)
        start, stop = self.rank * n // self.size, (self.rank + 1) * n // self.size
        counts = stop > start
        if not counts:  # fewer examples than processes: one of them again, to draw as many random numbers as the others
            start, stop = 0, 1
        shared: Any = SharedModel(model, BatchPart(start, stop, n, Sum.apply))
        value = objective(shared, take(x, slice(start, stop))).bound.sum().item()
        return value if counts else 0.0

    def agree(self, problem: Problem, asked: str, row: Tensor) -> tuple[Problem, str, Tensor]:
        flags = [float(problem is not None), *(float(asked == word) for word in STOP_REASONS)]
        message = torch.cat([torch.tensor(flags, dtype=row.dtype, device=row.device), row])
        dist.all_reduce(message)
        signs = message[: len(flags)].tolist()
        if signs[0]:
            problems: list[Problem] = [None] * self.size
            dist.all_gather_object(problems, problem)
            problem = min(each for each in problems if each is not None)
        return problem, first_reason(signs[1:]), message[len(flags) :] / self.size

    def agree_to_stop(self, asked: str) -> str:
        message = torch.tensor([float(asked == word) for word in STOP_REASONS], device=self.device)
        dist.all_reduce(message)
        return first_reason(message.tolist())

    def sum_over_processes(self, value: float) -> float:
        message = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(message)
        return message.item()

    def gather(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)


class Sum(torch.autograd.Function):
    """The sum of a tensor over all processes; backward sums their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return Sum.forward(ctx, gradient.contiguous())


def first_reason(counts: list[float]) -> str:
    return next((word for word, count in zip(STOP_REASONS, counts, strict=True) if count), "")


def describe_lost_process(error: Exception) -> str:
    reason = re.sub(r"\[\S*/\S*\] *", "", " ".join(str(error).split()))  # without the line of the library's source
    return (
        "another process of this run has ended or cannot be reached; the checkpoint before is whole: start the same command "
        f"again, or use torchrun --max-restarts ({reason[:120]})"
    )


def agree_on_name(store: dist.Store, rank: int, size: int, patience: timedelta) -> str:
    """A name for this start of the processes, the same for all of them.

    torchrun keeps one store through all its restarts, with the addresses of processes that are dead, and counts restarts on
    each machine for itself. So each process says that it is here, under a name of its own, and the first one answers to it.
    """
    own, waited = uuid.uuid4().hex, Stopwatch()
    if rank > 0:
        store.set(f"bsvi/here/{rank}", own)
        name = store.get(f"bsvi/answer/{own}").decode()
        store.set(f"bsvi/heard/{name}/{rank}", "")
        return name
    waiting = {*range(1, size)}
    while waiting:
        for other in tuple(waiting):
            if store.check([f"bsvi/heard/{own}/{other}"]):
                waiting.remove(other)
            elif store.check([f"bsvi/here/{other}"]):
                # perhaps said by a dead one: then its successor will say it again
                store.set(f"bsvi/answer/{store.get(f'bsvi/here/{other}').decode()}", own)
        if waited.seconds > patience.total_seconds():
            raise RankLost(f"processes {sorted(waiting)} of {size} did not come within {patience}")
        time.sleep(0.02)
    return own


@contextmanager
def join_processes(place: Rank, device: str, patience: timedelta = PATIENCE) -> Iterator[Ranks]:
    """Connect to the other processes that torchrun has started; on the way out of an error the connection is just dropped."""
    end_with_parent(signal.SIGTERM)  # torchrun itself may be killed: then all save and leave
    chosen = runtime.choose_device(device)
    try:
        store, rank, size = next(rendezvous("env://", timeout=patience))
        store = dist.PrefixStore(agree_on_name(store, rank, size, patience), store)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, RankLost):
            raise
        raise RankLost(f"cannot join the other processes ({' '.join(str(error).split())[:160]})") from None
    ranks = Ranks(place.rank, place.size, place.local, chosen)
    with ranks.guard():
        yield ranks
    dist.destroy_process_group()
