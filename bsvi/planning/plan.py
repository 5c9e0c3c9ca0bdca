"""How much a table of runs will take before it is started: operations, memory and hours, for this machine or another."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bsvi.experiments.build import load_data
from bsvi.experiments.config import Experiment
from bsvi.tables.data_sets import DATA_SETS

EVALUATION_BATCH = 100  # of validation, and of bsvi evaluate where nothing is measured
ELBO_DRAWS = 32  # of bsvi evaluate


@dataclass(frozen=True)
class ImageCounts:
    """What a plan needs to know of a data set."""

    shape: tuple[int, int, int]
    likelihood: str
    valid: int
    test: int


def describe_images(e: Experiment, data_dir: Path | None = None) -> ImageCounts:
    """The experiment's images: known for the public data sets without reading them, read where they are the user's own.

    >>> from bsvi.experiments.config import EXPERIMENTS
    >>> describe_images(EXPERIMENTS["svhn"])
    ImageCounts(shape=(1, 32, 32), likelihood='logistic', valid=2000, test=26032)
    """
    row = DATA_SETS.get(e.data.name)
    if row is not None and row.valid and row.test:
        return ImageCounts(row.shape, row.likelihood, row.valid, row.test)
    dataset = load_data(e, data_dir, progress=False)
    return ImageCounts(dataset.shape, dataset.likelihood, len(dataset.valid), len(dataset.test))


@dataclass(frozen=True)
class PlannedEvaluation:
    """What bsvi evaluate is asked for: BSVI-k, and IWAE with at most ``iwae`` draws, of ``images`` test images."""

    k: int
    iwae: int
    images: int


@dataclass(frozen=True)
class Seconds:
    """What one method takes: a step, a look at all validation images, an evaluation of the trained run."""

    step: float
    look: float
    evaluation: float


@dataclass(frozen=True)
class PlannedMethod:
    """One method of a plan, or phases in turn; hours are for one run, a step is the average one."""

    method: str
    decoder_calls: int
    decoder_flops: int
    flops: int
    memory: int
    step_seconds: float
    look_seconds: float
    train_hours: float
    evaluate_hours: float


@dataclass(frozen=True)
class Plan:
    """A table of runs: one row per method, each with ``seeds`` runs."""

    experiment: str
    device: str
    basis: str  # "counted" from data sheets or a given rate, or "measured" here
    steps: int
    batch_size: int
    k: int
    seeds: int
    devices: int
    evaluation: PlannedEvaluation
    rows: tuple[PlannedMethod, ...]

    @property
    def train_hours(self) -> float:
        return self.seeds * sum(row.train_hours for row in self.rows)

    @property
    def evaluate_hours(self) -> float:
        return self.seeds * sum(row.evaluate_hours for row in self.rows)

    @property
    def hours_on_devices(self) -> float:
        """Hours until all is trained and evaluated where each device takes one whole run after the other."""
        return schedule_hours(
            [row.train_hours + row.evaluate_hours for row in self.rows for _ in range(self.seeds)], self.devices
        )

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for --json."""
        hours = {"train_hours": self.train_hours, "evaluate_hours": self.evaluate_hours}
        return asdict(self) | hours | {"hours_on_devices": self.hours_on_devices}


def schedule_hours(hours: Iterable[float], devices: int) -> float:
    """When the last of these runs ends if the longest start first and none is split.

    >>> schedule_hours([3.0, 1.0, 1.0, 1.0], devices=2), schedule_hours([3.0, 1.0, 1.0], devices=8)
    (3.0, 3.0)
    """
    ends = [0.0] * devices
    for run in sorted(hours, reverse=True):
        ends[ends.index(min(ends))] += run
    return max(ends)


def make_plan(
    experiments: Mapping[str, Experiment],
    device: str,
    counts: Mapping[str, Any],
    seconds: dict[str, Seconds],
    evaluation: PlannedEvaluation,
    seeds: int = 1,
    *,
    devices: int = 1,
    basis: str = "counted",
) -> Plan:
    """Steps, looks and the evaluation of every row, put together. Early stopping is not foreseen: an upper figure.

    ``counts`` and ``seconds`` are those of methods. A row with phases has the average step, and the memory of the largest.
    """
    rows = []
    for name, e in experiments.items():
        phases = [(counts[phase.method], seconds[phase.method], steps / e.steps) for phase, steps in e.list_phases()]
        step = sum(share * s.step for _, s, share in phases)
        look = sum(share * s.look for _, s, share in phases)
        calls, decoder_flops, flops = (
            round(sum(share * getattr(count, what) for count, _, share in phases))
            for what in ("decoder_calls", "decoder_flops", "flops")
        )
        rows.append(
            PlannedMethod(
                method=name,
                decoder_calls=calls,
                decoder_flops=decoder_flops,
                flops=flops,
                memory=max(count.memory for count, *_ in phases),
                step_seconds=step,
                look_seconds=look,
                train_hours=(e.steps * step + math.ceil(e.steps / e.valid_every) * look) / 3600,
                evaluate_hours=phases[-1][1].evaluation / 3600,
            )
        )
    first = next(iter(experiments.values()))
    return Plan(
        experiment=first.experiment,
        device=device,
        basis=basis,
        steps=first.steps,
        batch_size=first.batch_size,
        k=first.svi.steps,
        seeds=seeds,
        devices=devices,
        evaluation=evaluation,
        rows=tuple(rows),
    )
