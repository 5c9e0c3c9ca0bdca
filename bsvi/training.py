"""The training loop, from top to bottom: anneal, estimate, backward, clip, step, log, validate, save, stop."""

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from bsvi.health import Meter, problems
from bsvi.model import Model
from bsvi.objectives import BadInput, Objective
from bsvi.runs import Run
from bsvi.state import capture, restore

VALIDATION_SEED = 2019  # the noise of every look at the validation images

Stream = Callable[[int], Iterator[Any]] | Iterable[Any]


@dataclass(frozen=True)
class Training:
    """How long and how; the defaults are the paper's where it says."""

    steps: int = 200_000  # updates at most
    lr: float = 1e-3  # AMSGrad
    max_grad_norm: float = 5.0  # of phi's and theta's gradient together
    beta_start: float = 1.0  # KL annealing: beta of the first step
    beta_steps: int = 0  # and the steps until it is 1
    valid_every: int = 1000  # steps between looks at the validation images
    patience: int = 20  # looks without a better bound before stopping; 0: never
    log_every: int = 100  # steps between lines of metrics
    save_every: float = 120.0  # seconds between checkpoints
    time_limit: float = math.inf  # seconds until the run is saved and left, to be taken up again


@dataclass(frozen=True)
class Result:
    """Where training ended: ``stopped`` is "steps" or "early" when finished, "time" or a signal's name when it can go on."""

    steps: int
    best_step: int
    best_valid_bound: float
    seconds: float
    stopped: str
    decoder_calls: int

    @property
    def finished(self) -> bool:
        return self.stopped in ("steps", "early")


class NotFinite(ArithmeticError):
    """Training met NaN or infinity and stopped before any parameter took it in; the message has step, tensor and ids."""


class Watcher:
    """What sees the training: prints nothing. bsvi.watch has one for terminals."""

    def train(self, line: dict[str, Any]) -> None: ...

    def step(self, step: int) -> None: ...

    def valid(self, line: dict[str, Any], model: Model, batch: Any) -> None: ...

    def say(self, line: str) -> None: ...


def train(
    model: Any,
    objective: Objective,
    batches: Stream,
    valid: Stream | None = None,
    settings: Training = Training(),  # noqa: B008 - frozen
    run: Run | None = None,
    watcher: Watcher = Watcher(),  # noqa: B008 - without state
    config: dict[str, Any] | None = None,
) -> Result:
    """Train ``model`` (a module that is a Model) in place and leave it with its best weights.

    batches  of training: an iterable that is cycled, or a function of the step at which to start, which makes resuming exact.
             Each batch is x, or (x, ids)
    valid    of validation, the same every time; without it the last weights count as the best
    run      a run folder: metrics, checkpoints, and resuming from them

    >>> model = torch.nn.Linear(1, 1)  # doctest: +SKIP
    >>> train(bsvi.VAE(encoder, decoder), bsvi.objective("bsvi-sir"), batches, valid)  # doctest: +SKIP
    """
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=settings.lr, amsgrad=True)
    meter, looks = Meter(), Looks()
    step, before = 0, 0.0
    best: dict[str, Tensor] = {}
    if run is not None and (saved := run.load()) is not None:
        step, before, best = restore(saved, model, objective, optimizer, meter, looks)
        watcher.say(f"resumed at step {step}")
    start = last_save = time.monotonic()
    stopped = "early" if looks.exhausted(settings.patience) else "steps"
    model.train()
    with Signals() as signals:
        stream = starting_at(batches, step)
        while step < settings.steps and not looks.exhausted(settings.patience):
            x, ids = unpack(next(stream))
            beta = annealed(settings, step)
            try:
                estimate = objective(model, x, beta)
            except BadInput as error:
                raise NotFinite(f"step {step + 1}: {error} (batch ids {named(ids)})") from None
            optimizer.zero_grad(set_to_none=True)
            estimate.loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            check_finite(step + 1, estimate, norm, model, objective, ids)
            optimizer.step()
            step += 1
            meter.add(estimate, norm)
            watcher.step(step)
            seconds = before + time.monotonic() - start

            if step % settings.log_every == 0 or step == settings.steps:
                calls = step * objective.decoder_calls
                line = {"split": "train", "step": step, "seconds": seconds, "beta": beta, "lr": settings.lr}
                line |= meter.line(model, estimate, objective) | {"decoder_calls": calls}
                if run is not None:
                    run.log(line)
                watcher.train(line)
                for problem in problems(line):
                    watcher.say(problem)

            if valid is not None and (step % settings.valid_every == 0 or step == settings.steps):
                bound, first = validate(model, objective, valid)
                improved = looks.take(step, bound)
                if improved:
                    best = {name: value.detach().clone() for name, value in model.state_dict().items()}
                    if run is not None:
                        run.save_model(best, config or {}, step)
                line = {"split": "valid", "step": step, "seconds": seconds, "bound": bound, "best": improved}
                if run is not None:
                    run.log(line)
                watcher.valid(line, model, first)

            if signals.received or time.monotonic() - start > settings.time_limit:
                stopped = signals.received or "time"
                break
            if run is not None and time.monotonic() - last_save > settings.save_every:
                run.save(
                    step, *capture(model, objective, optimizer, meter, looks, before + time.monotonic() - start, best)
                )
                last_save = time.monotonic()
        else:
            stopped = "early" if step < settings.steps else "steps"

        seconds = before + time.monotonic() - start
        if run is not None:
            run.save(step, *capture(model, objective, optimizer, meter, looks, seconds, best))
    result = Result(step, looks.best_step or step, looks.best, seconds, stopped, step * objective.decoder_calls)
    if result.finished:
        if best:
            model.load_state_dict(best)
        elif run is not None:
            run.save_model(model.state_dict(), config or {}, step)
        if run is not None:
            run.write("result.json", vars(result))
    return result


def validate(model: Any, objective: Objective, valid: Stream) -> tuple[float, Any]:
    """The method's own bound at beta = 1 over all validation batches, always with the same noise; and the first batch."""
    total, count, first = 0.0, 0, None
    device = next(model.parameters()).device
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(VALIDATION_SEED)
        for batch in valid(0) if callable(valid) else valid:
            x, _ = unpack(batch)
            first = batch if first is None else first
            total += objective(model, x).bound.sum().item()
            count += len(x)
    model.train()
    if count == 0:
        raise ValueError("there are no validation batches; give some, or valid=None")
    return total / count, first


class Looks:
    """The looks at the validation images so far: the best bound, where it was, and how many have passed since."""

    def __init__(self) -> None:
        self.best, self.best_step, self.since = -math.inf, 0, 0

    def take(self, step: int, bound: float) -> bool:
        if bound > self.best:
            self.best, self.best_step, self.since = bound, step, 0
            return True
        self.since += 1
        return False

    def exhausted(self, patience: int) -> bool:
        return 0 < patience <= self.since


class Signals:
    """SIGTERM, SIGINT and SIGUSR1 end the loop after the step in hand; a second one ends the process at once."""

    NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")

    def __init__(self) -> None:
        self.received = ""

    def __enter__(self) -> "Signals":
        self.before: dict[int, Any] = {}
        try:
            for name in self.NAMES:
                number = getattr(signal, name)
                self.before[number] = signal.signal(number, self._note)
        except ValueError:
            self.before.clear()  # not in the main thread: the owner of that thread decides
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)  # the second: nothing on disk is ever half written
        for other in self.before:
            signal.signal(other, signal.SIG_DFL)


def annealed(settings: Training, step: int) -> float:
    """beta of this step (counted from 0): from beta_start to 1 over beta_steps, then 1."""
    if step >= settings.beta_steps:
        return 1.0
    return settings.beta_start + (1.0 - settings.beta_start) * step / settings.beta_steps


def starting_at(batches: Stream, step: int) -> Iterator[Any]:
    """The endless stream of batches from this step on."""
    if callable(batches):
        return iter(batches(step))
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(batches)), step, None)


def unpack(batch: Any) -> tuple[Tensor, Tensor | None]:
    """x and its ids, if the batch has them."""
    if isinstance(batch, Tensor):
        return batch, None
    x, *rest = batch
    return x, rest[0] if rest else None


def check_finite(step: int, estimate: Any, norm: Tensor, model: Any, objective: Objective, ids: Tensor | None) -> None:
    """Raise NotFinite before the optimiser sees it."""
    bad = ~torch.isfinite(estimate.bound)
    if bad.any():
        where = ids[bad.to(ids.device)] if ids is not None else bad.nonzero().flatten()
        raise NotFinite(
            f"step {step}: the bound is not finite for batch ids {named(where)}: no draw had a finite weight; "
            "look at the decoder's output for these examples, or lower svi.lr or optim.lr"
        )
    groups = [
        ("gradient of ", model.named_parameters()),
        ("gradient of the objective's ", objective.named_parameters()),
    ]
    if not torch.isfinite(norm) or any(
        p.grad is not None and not torch.isfinite(p.grad).all() for p in objective.parameters()
    ):
        for kind, parameters in groups:
            for name, parameter in parameters:
                if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
                    raise NotFinite(
                        f"step {step}: {kind}{name} is not finite, batch ids {named(ids)}; lower optim.lr, or resume "
                        "from an earlier checkpoint with another seed"
                    )
        raise NotFinite(f"step {step}: the gradient's norm overflows, batch ids {named(ids)}; lower optim.lr")


def named(ids: Tensor | None, most: int = 60) -> str:
    """Ids for an error message."""
    if ids is None:
        return "unknown"
    listed = ids.flatten().tolist()
    return ", ".join(map(str, listed[:most])) + (f", ... ({len(listed)})" if len(listed) > most else "")
