"""How fast training goes on this machine: a few real steps of a few methods, from which the others follow."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bsvi.data import Dataset, Split, training_batches
from bsvi.draws import encode, weigh
from bsvi.evaluation.evaluate import cut_into_chunks
from bsvi.experiments.build import BuiltExperiment, build_model, build_objective
from bsvi.experiments.config import Experiment
from bsvi.objectives import Objective
from bsvi.planning.plan import ELBO_DRAWS, EVALUATION_BATCH, ImageCounts, PlannedEvaluation, Seconds
from bsvi.refinement import SVI
from bsvi.system import runtime
from bsvi.system.clock import CLOCKS, Stopwatch
from bsvi.tables.likelihoods import LIKELIHOODS
from bsvi.tables.methods import METHODS
from bsvi.training.loop import Training, Watcher, train

IMAGES = 1000  # made up, to draw batches from


@dataclass(frozen=True)
class Passes:
    """Seconds of one decoder call over ``rows`` images."""

    forward: float  # without a graph
    refine: float  # forward for all samples of a step, backward to z, and the step on lambda
    rows: int

    def of(self, objective: Objective, calls: int) -> float:
        """The time of ``calls`` decoder calls, of which SVI's steps also go backward to z."""
        refinement: Any = objective.refinement
        steps, samples = getattr(refinement, "steps", 0), getattr(refinement, "samples", 1)  # none without a walk
        return steps * self.refine + (calls - steps * samples) * self.forward


@dataclass(frozen=True)
class Pace:
    """Seconds of whole steps by method, and of decoder calls over a batch of training, of validation and of ``bsvi evaluate``."""

    steps: dict[str, float]
    training: Passes
    evaluation: Passes
    scoring: Passes | None = None  # as evaluation where it was not timed

    def of(self, e: Experiment, images: ImageCounts, evaluation: PlannedEvaluation) -> Seconds:
        """The times of the experiment's method, from the one that was timed and the passes by which they differ."""
        name = e.method if e.method in self.steps else choose_timed(e.method)
        mine, timed = (build_objective(replace_method(e, method)) for method in (e.method, name))
        more = self.training.of(mine, mine.decoder_calls) - self.training.of(timed, timed.decoder_calls)
        large = self.evaluation
        refinement: Any = mine.refinement
        calls = refinement.decoder_calls if hasattr(refinement, "steps") else refinement.rows  # without theta's
        look = large.of(mine, calls) * images.valid / large.rows
        small = self.scoring or large
        scored = evaluation.k * small.refine + (1 + ELBO_DRAWS + evaluation.iwae) * small.forward
        return Seconds(self.steps[name] + more, look, scored * evaluation.images / small.rows)


def choose_timed(method: str) -> str:
    """The method that is timed in place of this one: the same step with more or fewer passes of the decoder."""
    return METHODS.find(method).timed_as or method


def find_chunk(x: Tensor) -> int:
    """Draws that evaluation without gradients takes at once."""
    return next(iter(cut_into_chunks(1 << 20, x, None)))


def replace_method(e: Experiment, method: str) -> Experiment:
    return e.model_copy(update={"method": method})


class StepClock(Watcher):
    """Notes when each step ended."""

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick, self.ends = tick, [tick()]

    def start(self, step: int) -> None:
        self.ends = [self.tick()]

    def step(self, step: int) -> None:
        self.ends.append(self.tick())

    def durations(self) -> list[float]:
        """Seconds of each step; the first one is left out where there are more, as it also sets things up."""
        found = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return found[1:] or found


def measure_pace(
    e: Experiment,
    images: ImageCounts,
    methods: Iterable[str],
    started: runtime.Started,
    seconds: float = 20.0,
    clock: Callable[[], float] = CLOCKS["wall"],
    *,
    say: Callable[[str], None] = lambda line: None,
    rows: int = EVALUATION_BATCH,
) -> Pace:
    """Time the real training loop on made-up images, all kinds of step in turn, for about ``seconds`` after a warm-up.

    ``rows`` is the batch of ``bsvi evaluate``. Every kind has networks of its own, as in a run of its own: a compiled decoder
    keeps a few kinds of call only.
    """

    def tick() -> float:
        if started.device.type == "cuda":
            torch.cuda.synchronize()
        return clock()

    timed = sorted({choose_timed(method) for method in methods} | {"bsvi-sir"})
    built = {name: _build(replace_method(e, name), images, started) for name in timed}
    lengths = {}
    for name, one in built.items():
        say(f"measuring {name}: warm-up, which compiles where that is chosen")
        _steps(one, 1, tick)
        lengths[name] = max(1, min(10, int(0.5 / statistics.median(_steps(one, 2, tick)))))
    sizes = {"training": e.batch_size, "evaluation": EVALUATION_BATCH, "scoring": rows}
    found: dict[str, list[float]] = {}
    watch, done = Stopwatch(), 0
    while not done or (watch.seconds < seconds and done < 25):
        for name, one in built.items():
            found.setdefault(name, []).append(statistics.median(_steps(one, 1 + lengths[name], tick)))
        for what, size in sizes.items():
            forward, refine = _passes(built["bsvi-sir"], size, what != "training", tick)
            found.setdefault(f"forward {what}", []).append(forward)
            found.setdefault(f"refine {what}", []).append(refine)
        done += 1
        say(f"measuring: round {done}")
    medians = {name: statistics.median(times) for name, times in found.items()}
    passes = [Passes(medians[f"forward {what}"], medians[f"refine {what}"], size) for what, size in sizes.items()]
    return Pace({name: medians[name] for name in timed}, *passes)


def _build(e: Experiment, images: ImageCounts, started: runtime.Started) -> BuiltExperiment:
    grey = torch.randint(256, (IMAGES, *images.shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = Split("train", grey, torch.arange(IMAGES), 255, binarise=LIKELIHOODS.find(images.likelihood).binary)
    dataset = Dataset("made up", split, split, split, images.likelihood)
    model = build_model(e, images.shape, images.likelihood).to(started.device)
    runtime.compile_decoder(model.decoder, started.compile)
    return BuiltExperiment(model, build_objective(e).to(started.device), dataset, e, started.device)


def _steps(built: BuiltExperiment, steps: int, tick: Callable[[], float]) -> list[float]:
    """Seconds of each of a few training steps."""
    clocked = StepClock(tick)
    settings = Training(steps=steps, lr=built.experiment.optim.lr, log_every=built.experiment.log_every)
    result = train(built.model, built.objective, built.batches, None, settings, watcher=clocked)
    if result.stopped != "steps":
        raise KeyboardInterrupt(result.stopped)
    return clocked.durations()


def _passes(
    built: BuiltExperiment, size: int, chunks: bool, tick: Callable[[], float], steps: int = 3
) -> tuple[float, float]:
    """Seconds of one draw without a graph, and of one step of the walk; evaluation takes several small draws at a time."""
    model, svi = built.model, replace(SVI(**built.experiment.svi.model_dump()), steps=steps)
    x = next(training_batches(built.dataset.train, seed=0, batch_size=size, device=built.device)).x
    times, draws = [], find_chunk(x) if chunks else 1
    with torch.no_grad():
        lambda_0 = encode(model, x)
        for _ in range(3):
            begin = tick()
            weigh(model, x, model.posterior(lambda_0), draws)
            times.append((tick() - begin) / draws)
    forward = statistics.median(times)
    begin = tick()
    for _ in svi.walk(model, x, lambda_0):
        pass
    return forward, max(forward, (tick() - begin - forward) / steps)
