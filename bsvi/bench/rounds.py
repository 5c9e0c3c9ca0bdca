"""Timing that can be trusted on a noisy machine: interleaved rounds, ratios within a round, and a yardstick in each."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bsvi.system.clock import CLOCKS, ClockName
from bsvi.system.runtime import count_page_faults


@dataclass(frozen=True)
class Case:
    """One thing to time: `prepare` is not timed, `run` is. Ratios are to the case `base` of the same round."""

    name: str
    base: str
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass
class Rounds:
    """Seconds and page faults of each case per round, and the yardstick's rate (GFLOP/s) of each round."""

    clock: ClockName
    seconds: dict[str, list[float]] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=dict)
    sgemm: list[float] = field(default_factory=list)

    @property
    def void(self) -> bool:
        """Whether the machine was too busy to believe the run: sgemm's median is under 90% of its best.

        >>> Rounds("wall", sgemm=[100.0, 99.0, 98.0]).void, Rounds("wall", sgemm=[100.0, 80.0, 70.0]).void
        (False, True)
        """
        return statistics.median(self.sgemm) < 0.9 * max(self.sgemm)

    def summary(self, case: Case) -> dict[str, Any]:
        """Return medians of seconds and of the ratio to the base in the same round, with n and range."""
        own, base = self.seconds[case.name], self.seconds[case.base]
        ratios = [mine / other for mine, other in zip(own, base, strict=True)]
        return {
            "seconds": statistics.median(own),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "n": len(ratios),
            "page_faults": statistics.median(self.faults[case.name]),
            "all_seconds": own,
        }


def measure_sgemm_rate(clock: Callable[[], float], size: int = 1536, repeats: int = 3) -> float:
    """Return the best float32 matrix-product rate of a few tries, in GFLOP/s."""
    a = torch.ones(size, size)
    best = float("inf")
    for _ in range(repeats + 1):
        begin = clock()
        a @ a
        best = min(best, clock() - begin)
    return 2 * size**3 / best / 1e9


def run_interleaved(
    cases: Sequence[Case], rounds: int, clock: ClockName = "wall", say: Callable[[str], None] = lambda line: None
) -> Rounds:
    """Return the timings of all cases, run once each per round, in reversed order every other round.

    >>> case = Case("a", "a", lambda: sum(range(1000)))
    >>> done = run_interleaved([case], rounds=3)
    >>> done.summary(case)["ratio"], done.summary(case)["n"]
    (1.0, 3)
    """
    tick = CLOCKS[clock]
    done = Rounds(clock)
    for index in range(rounds):
        done.sgemm.append(measure_sgemm_rate(tick))
        for case in cases if index % 2 == 0 else reversed(cases):
            case.prepare()
            faults, begin = count_page_faults(), tick()
            case.run()
            done.seconds.setdefault(case.name, []).append(tick() - begin)
            done.faults.setdefault(case.name, []).append(count_page_faults() - faults)
        say(f"round {index + 1} of {rounds}: sgemm {done.sgemm[-1]:.0f} GFLOP/s")
    return done
