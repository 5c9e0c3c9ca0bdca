"""One pass over a data set that turns batches into numbers per example: the engine of evaluate, amortization_gap and ais.

It knows nothing of the numbers. It puts the model in evaluation mode and back, names the examples, goes on from a store,
and gathers one column per number, ordered by example id, whatever the order and size of the batches were.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from bsvi.checks.identity import identify
from bsvi.checks.trial import check_model, check_repeats
from bsvi.evaluation.example_ids import Batches, check_batches, check_new, find_checksums, name_examples
from bsvi.evaluation.noise import Noise
from bsvi.examples import Nested, Pick, each, first, take
from bsvi.model import Model
from bsvi.objectives import check_input
from bsvi.parameters import find_trainable, freeze, in_eval_mode
from bsvi.runs.store import Part, Record
from bsvi.system.clock import Stopwatch
from bsvi.system.terminal import count_on_terminal

Progress = Callable[[int], None]
NOT_KEYED = (
    "some random numbers came from torch's own generator (a posterior family without normal or uniform base noise, or a "
    "random layer), so the numbers depend on how the examples were batched; keep the batch size fixed to compare"
)


@dataclass(frozen=True)
class ExampleTable:
    """One row per example, ordered by id; ``seconds`` counts all passes that a store has seen."""

    ids: Int64[np.ndarray, " examples"]
    values: dict[str, Float64[np.ndarray, " examples"]]
    seconds: float
    notes: tuple[str, ...] = ()

    def as_result(self, *warnings: str) -> dict[str, Any]:
        """What a ``PerExample`` is made of; notes come after the warnings."""
        return {"ids": self.ids, "columns": self.values, "warnings": (*warnings, *self.notes), "seconds": self.seconds}


def tabulate(
    model: Model,
    batches: Batches,
    function: Callable[[Nested, Tensor], dict[str, Tensor]],
    question: dict[str, Any],
    store: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    picks: tuple[Pick | None, Pick | None] = (None, None),
    columns: Iterable[str] = (),
    **others: Any,
) -> ExampleTable:
    """``function(x, ids)`` of every batch, as one table.

    ``question``, and ``others`` such as a refinement or a function of the user's own, are what the numbers depend on besides
    model and data; with ``store``, finished examples are kept under them and not computed again. ``progress`` is called
    after every batch with the number of examples done; without it a terminal shows that number. ``picks`` take x and ids out
    of a batch, see ``unpack``. A table that lacks one of ``columns`` came from a store that was spoilt: ValueError.
    """
    check_batches(batches)
    with evaluation_mode(model), count_on_terminal(str(question.get("what"))) as shown:
        check_model(model)
        progress = shown if progress is None else progress
        record = None if store is None else Record(store, question | describe_model(model, **others))
        try:
            seed = int(question.get("seed", 0))
            table = _tabulate(model, name_examples(batches, *picks), function, record, seed, progress)
        finally:
            if record is not None:
                record.close()
    if lacking := [name for name in columns if name not in table.values]:
        raise ValueError(f"{store} is damaged (it lacks {', '.join(lacking)}); remove it and evaluate again")
    return table


def _tabulate(
    model: Model,
    batches: Iterator[tuple[Nested, Int64[Tensor, " batch"]]],
    function: Callable[[Nested, Tensor], dict[str, Tensor]],
    record: Record | None,
    seed: int,
    progress: Progress | None,
) -> ExampleTable:
    seen: set[int] = set()
    parts: list[Part] = [] if record is None else record.parts
    seconds, notes = 0.0, set[str]()
    for x, ids in batches:
        check_input(x, 1.0, model)
        names = ids.tolist()
        check_new(names, seen)
        todo, crc = list(range(len(names))), []
        if record is not None:
            crc = find_checksums(x)
            todo = [i for i in todo if not _is_done(record, names[i], crc[i])]
        if todo:
            watch, place = Stopwatch(), torch.tensor(todo)
            rows = to_device_of(model, take(x, place))
            check_repeats(model, rows)
            values, keyed = _call(function, rows, ids[place], seed)
            spent, remarks = watch.seconds, set() if keyed else {NOT_KEYED}
            part = (ids[place].numpy(), values)
            if record is None:
                parts.append(part)
                seconds, notes = seconds + spent, notes | remarks
            else:
                record.append(part, [crc[i] for i in todo], spent, remarks)
        if progress is not None:
            progress(len(seen))
    if not seen:
        raise ValueError("there is no example to evaluate: batches gave nothing; a generator can be read once only")
    if record is not None:
        seconds, notes = record.seconds, record.notes
    return _gather(parts, seen, seconds, notes)


def _gather(parts: list[Part], seen: set[int], seconds: float, notes: set[str]) -> ExampleTable:
    """The parts as one table of the examples seen: a store may hold others too."""
    ids = np.concatenate([part[0] for part in parts])
    order = np.argsort(ids, kind="stable")
    order = order[np.isin(ids[order], np.fromiter(seen, np.int64, len(seen)))]
    names = [name for name in parts[0][1] if all(name in part[1] for part in parts)]  # an old store has fewer columns
    values = {name: np.concatenate([part[1][name] for part in parts])[order] for name in names}
    return ExampleTable(ids[order], values, seconds, tuple(sorted(notes)))


def _call(
    function: Callable[[Nested, Tensor], dict[str, Tensor]], x: Nested, ids: Tensor, seed: int
) -> tuple[dict[str, np.ndarray], bool]:
    """The function's values as float64 arrays, and whether torch's own generator was left alone."""
    device = first(x).device
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(int(Noise(ids[:1], seed).keys.item()))  # for noise that cannot be keyed: repeatable at least
        before = _generator_states(cuda)
        values = function(x, ids.to(device))
        keyed = all(torch.equal(a, b) for a, b in zip(before, _generator_states(cuda), strict=True))
    return {name: value.detach().double().cpu().numpy() for name, value in values.items()}, keyed


def _generator_states(cuda: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in cuda)]


def _is_done(record: Record, name: int, crc: int) -> bool:
    known = record.crc.get(name)
    if known is not None and known != crc:
        raise ValueError(
            f"{record.path} holds example {name} with other data; the data or the ids have changed: "
            "remove the file or name another"
        )
    return known is not None


def to_device_of(model: Model, x: Nested) -> Nested:
    """x on the device of the model's parameters."""
    parameter = next(iter(_parameters(model)), None)
    return x if parameter is None else each(x, lambda tensor: tensor.to(parameter.device))


def _parameters(model: Model) -> list[nn.Parameter]:
    parameters = getattr(model, "parameters", None)
    return list(parameters()) if callable(parameters) else []


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Evaluation mode and no parameter gradients within; every module and parameter as it was afterwards."""
    # SVI asks for lambda's gradient alone: less to keep, less to compute
    with in_eval_mode(model), freeze(find_trainable(model)):
        yield


def describe_model(model: Model, **others: Any) -> dict[str, Any]:
    """What a store must know of the model: its tensors, and all else that makes it another function of x."""
    asked: dict[str, Any] = {"model": model_hash(model)}
    if code := identify(model, **others):
        asked["code"] = code
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            asked[f"autocast {device}"] = str(torch.get_autocast_dtype(device))
    return asked


def model_hash(model: Model) -> str:
    """sha256 over names, types, shapes and bytes of the model's parameters and buffers.

    >>> from bsvi import VAE
    >>> model_hash(VAE(nn.Linear(3, 4), nn.Linear(2, 3))) == model_hash(VAE(nn.Linear(3, 4), nn.Linear(2, 3)))
    False
    """
    digest = hashlib.sha256(type(model).__name__.encode())
    state = model.state_dict() if isinstance(model, nn.Module) else dict(enumerate(_parameters(model)))
    for name, value in state.items():
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
