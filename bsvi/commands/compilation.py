"""Whether a run compiles its decoder: from measured times, decided once, so that a resumed run gives the same bits."""

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

from bsvi.system import runtime
from bsvi.system.clock import Stopwatch
from bsvi.system.files import write_atomically
from bsvi.system.reading import read_json

if TYPE_CHECKING:
    from bsvi.experiments.build import BuiltExperiment

SAVED = 0.25  # of an update's time, where its steps are compiled (docs/performance.md)
UNKNOWN = 60.0  # seconds that compiling takes the first time, where nobody has measured it here
GAIN = 2.0  # how often a run must win the time back
MOST_PLACES = 1000  # that are remembered


def decide(stored: dict[str, Any] | None, built: "BuiltExperiment", started: runtime.Started) -> bool:
    """Whether this process compiles: what the run's config.json says, unless the user says otherwise."""
    before = (stored or {}).get("compile")
    if started.compile == "auto" and isinstance(before, bool):
        return before
    return choose_compilation(built, started)


def choose_compilation(built: "BuiltExperiment", started: runtime.Started) -> bool:
    """Whether to compile: as asked; by itself, where a decoder is worth it, or a run long enough to win the time back."""
    if started.compile != "auto" or runtime.is_worth_compiling(built.model.decoder):
        return started.compile != "off"
    steps = count_steps(built)
    if not steps or built.model.slopes(next(iter(built.batches(0))).x) is None:
        return False
    left = min(steps * measure_update(built), built.experiment.seconds or float("inf"))
    return SAVED * left > GAIN * find_seconds(built)


def count_steps(built: "BuiltExperiment") -> int:
    """Updates by methods that refine their draws by steps, which can be compiled."""
    from bsvi.training.phases import Phase

    phases = built.phases or [Phase("", built.objective, built.experiment.steps)]
    first = [0, *(phase.last for phase in phases)]
    refined = [hasattr(phase.objective.refinement, "steps") for phase in phases]
    return sum(phase.last - begin for phase, begin, yes in zip(phases, first, refined, strict=False) if yes)


def measure_update(built: "BuiltExperiment") -> float:
    """Seconds of an update without its optimiser, the least of three; the random state stays as it was."""
    import torch

    devices = [built.device] if built.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        x, seconds = next(iter(built.batches(0))).x, []
        for _ in range(3):
            watch = Stopwatch()
            torch.autograd.grad(built.objective(built.model, x).loss, [*built.model.parameters()], allow_unused=True)
            seconds.append(watch.seconds)
    return min(seconds)


def find_seconds(built: "BuiltExperiment") -> float:
    """Seconds that compiling such a run took here the last time: less where its code is kept."""
    found = read_times().get(name_place(built))
    return found if isinstance(found, float) and found >= 0 else UNKNOWN


def note_seconds(built: "BuiltExperiment", seconds: float) -> None:
    """Remember what compiling took, for the next run; lost where there is nowhere to keep it."""
    times = read_times() | {name_place(built): round(seconds, 1)}
    with contextlib.suppress(OSError):
        write_atomically(runtime.cache_folder() / TIMES, json.dumps(dict([*times.items()][-MOST_PLACES:])).encode())


def name_place(built: "BuiltExperiment") -> str:
    """What decides how long compiling takes: torch, the networks, the batch, and how draws are made."""
    import torch

    shapes = [tuple(p.shape) for p in built.model.parameters()]
    told: Any = (torch.__version__, shapes, built.experiment.batch_size, str(built.objective.refinement))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def read_times() -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = read_json(runtime.cache_folder() / TIMES)
        return found if isinstance(found, dict) else {}
    return {}


TIMES = "compiled/seconds.json"
