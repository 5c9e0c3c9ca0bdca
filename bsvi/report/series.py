"""Metrics of many steps and seeds made into lines that can be drawn: binned over steps, averaged over seeds."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from bsvi.report.experiments import Row
from bsvi.report.records import ReportedRun, to_number
from bsvi.system.files import printable

BINS = 120  # more cannot be seen, and the page carries every point

Metric = Callable[[dict[str, Any]], float | None]


@dataclass(frozen=True)
class Series:
    """Values over steps: one line per seed, and their mean over the steps that all of these seeds have reached."""

    steps: Float[np.ndarray, " bins"]
    seeds: Float[np.ndarray, "runs bins"]  # not a number where a seed has no line
    mean: Float[np.ndarray, " bins"]

    @property
    def end(self) -> float:
        """The mean's last value."""
        return float(self.mean[~np.isnan(self.mean)][-1])


def make_metric(name: str, minus: str | None = None) -> Metric:
    """A metric of a line, or the difference of two; None where the line has none.

    >>> make_metric("svi_k", "svi_0")({"svi_k": -3.0, "svi_0": -4.5})
    1.5
    """

    def read(line: dict[str, Any]) -> float | None:
        one, two = to_number(line.get(name)), to_number(line.get(minus)) if minus else 0.0
        return one - two if one is not None and two is not None else None

    return read


def make_series(row: Row, split: str, read: Metric) -> Series | None:
    """The row's metric over steps, None where no run has it.

    A seed that stopped early leaves the mean: else the line would jump where it ends.
    """
    found = [_points(run, split, read) for run in row.runs]
    found = [points for points in found if points]
    if not found:
        return None
    last = max(points[-1][0] for points in found)
    count = min(BINS, max(len(points) for points in found))
    edges = np.linspace(0, last, count + 1)
    lines = np.full((len(found), count), np.nan)
    for i, points in enumerate(found):
        steps, values = np.array(points).T
        places = np.clip(np.searchsorted(edges, steps, side="left") - 1, 0, count - 1)
        totals, sizes = np.bincount(places, values, count), np.bincount(places, minlength=count)
        lines[i, sizes > 0] = totals[sizes > 0] / sizes[sizes > 0]
        lines[i] = _bridge_gaps(lines[i])
    whole = ~np.isnan(lines).any(axis=0)
    mean = np.where(whole, lines.mean(axis=0, where=~np.isnan(lines)), np.nan) if whole.any() else lines[0]
    return Series(edges[1:], lines, mean)


def changes(row: Row) -> list[tuple[float, str]]:
    """Where the row's phases follow each other (`--phases`): the last step of each but the last one, and the method after it."""
    found: dict[float, str] = {}
    for run in row.runs:
        lines = [line for line in run.train if isinstance(line.get("phase"), str)]
        pairs = [(a, b) for a, b in pairwise(lines) if a["phase"] != b["phase"]]
        found |= {float(a["step"]): printable(b["phase"], 80) for a, b in pairs}
    return sorted(found.items())


def _points(run: ReportedRun, split: str, read: Metric) -> list[tuple[float, float]]:
    lines = run.train if split == "train" else run.valid
    values = [(float(line["step"]), read(line)) for line in lines]
    return [(step, value) for step, value in values if value is not None]


def _bridge_gaps(line: Float[np.ndarray, " bins"]) -> Float[np.ndarray, " bins"]:
    """The line with gaps between its own first and last point filled in, for runs that logged less often."""
    known = np.flatnonzero(~np.isnan(line))
    inside = np.arange(known[0], known[-1] + 1)
    line[inside] = np.interp(inside, known, line[known])
    return line
