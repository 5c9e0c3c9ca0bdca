"""What the report knows of a run: plain records, without a way back to the files."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bsvi.system.files import printable

MOST_STEPS = 1e12  # more is no number of steps but damage


@dataclass(frozen=True)
class ReportWarning:
    """Something a reader should know before trusting a number, and the run folder it is about ('' for several)."""

    where: str
    text: str
    kind: str = ""  # what several of its kind have in common, where they differ in more than numbers


@dataclass(frozen=True)
class SplitScores:
    """One split of scores.json: means, and where the npz could be read the values per example."""

    summary: dict[str, Any]
    ids: Int[np.ndarray, " examples"] | None = None
    values: dict[str, Float[np.ndarray, " examples"]] = field(default_factory=dict)
    results: int = 1  # in the folder, of which this is the best

    @property
    def choice(self) -> str:
        """Which result this is, in words.

        >>> SplitScores({"examples": 400, "k": 500}, results=3).choice
        '400 images, k = 500, the best of 3'
        """
        about = f"{self.summary.get('examples', '?')} images, k = {self.summary.get('k', '?')}"
        return about + (f", the best of {self.results}" if self.results > 1 else "")

    def mean(self, name: str) -> float | None:
        """The mean of a score, `iwae_500` and the like among them; None where there is none.

        >>> SplitScores({"kl": {"mean": 3.5}}).mean("kl"), SplitScores({}).mean("kl")
        (3.5, None)
        """
        entry = self.summary.get(name)
        if name.startswith("iwae_") and isinstance(self.summary.get("iwae"), dict):
            entry = self.summary["iwae"].get(name.removeprefix("iwae_"))
        return to_number(entry.get("mean")) if isinstance(entry, dict) else None

    @property
    def particles(self) -> list[int]:
        """The numbers of IWAE particles that were scored, ascending."""
        entries = self.summary.get("iwae")
        return sorted(int(name) for name in entries if str(name).isdecimal()) if isinstance(entries, dict) else []

    @property
    def made_by(self) -> dict[str, Any]:
        """The settings of the estimators, as far as they are known: scores compare where these agree."""
        return {name: self.summary[name] for name in ("k", "examples", "seed") if name in self.summary}

    def share_of_high_khat(self, estimator: str) -> float | None:
        """The share of images with Pareto k-hat above 0.7 for 'bsvi' or 'iwae'; None where nobody has looked."""
        tree: Any = self.summary
        for name in ("diagnostics", "khat_above_0.7", estimator):
            tree = tree.get(name) if isinstance(tree, dict) else None
        return to_number(tree)


@dataclass(frozen=True)
class ReportedRun:
    """One run folder: its configuration, what it has logged so far, and its scores by split."""

    path: Path
    config: dict[str, Any]
    train: list[dict[str, Any]]
    valid: list[dict[str, Any]]
    result: dict[str, Any] | None
    scores: dict[str, SplitScores]
    pictures: list[Path]  # of `bsvi sample`, that of the latent first
    active: bool  # a line was written lately
    warnings: list[ReportWarning]
    own: bool = (
        False  # made by bsvi.train(run=...) with a user's own model: method, seed, experiment are from its place
    )

    @property
    def experiment(self) -> str:
        return printable(self.config.get("experiment", "unnamed"), 4000)

    @property
    def method(self) -> str:
        return printable(self.config.get("method", "unknown"), 4000)

    @property
    def seed(self) -> int:
        return int(to_number(self.config.get("seed")) or 0)

    @property
    def origin(self) -> str:
        """The run it went on from (`--fork`) or took its weights from (`--from`), in words; '' for neither."""
        origin = self.part("origin")
        if not origin:
            return ""
        start = "fork of" if origin.get("how") == "fork" else "weights of"
        parts = [f"{start} {origin.get('folder', 'an unnamed folder')}"]
        parts += [str(origin[name]) for name in ("method",) if origin.get(name)]
        parts += [f"step {origin['step']}"] if origin.get("step") is not None else []
        parts += [f"sha256 {str(origin['weights'])[:12]}"] if origin.get("weights") else []
        return ", ".join(parts)

    def part(self, name: str) -> dict[str, Any]:
        """A part of the configuration such as `data` or `versions`; empty where it is missing or not a table."""
        part = self.config.get(name)
        return part if isinstance(part, dict) else {}

    @property
    def steps(self) -> int:
        """Updates made so far."""
        last = to_number((self.result or {}).get("steps"))
        if last is not None and 0 <= last < MOST_STEPS:
            return int(last)
        return max((line["step"] for line in [*self.train, *self.valid]), default=0)

    @property
    def state(self) -> str:
        """'scored', 'trained' (no scores yet), 'running', 'stopped' or 'no metrics yet'."""
        if self.result is not None:
            return "scored" if self.scores else "trained"
        if not self.train and not self.valid:
            return "no metrics yet"
        return "running" if self.active else "stopped"

    def per_step(self, name: str) -> float | None:
        """A running total (`seconds`, `decoder_calls`) divided by the number of updates."""
        totals = [to_number((self.result or {}).get(name))] + [to_number(line.get(name)) for line in self.train[-1:]]
        total = next((value for value in totals if value is not None), None)
        return total / self.steps if total is not None and total > 0 and self.steps else None

    @property
    def pace(self) -> float | None:
        """Seconds per update: the median over the stretches between lines, which pauses and validation do not move."""
        known = [
            (line["step"], seconds) for line in self.train if (seconds := to_number(line.get("seconds"))) is not None
        ]
        paces = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(known) if b[0] > a[0] and b[1] > a[1]]
        return float(np.median(paces)) if paces else self.per_step("seconds")


def to_number(value: Any) -> float | None:
    """The value as a float, or None if it is not a finite number.

    >>> to_number(3), to_number("3"), to_number(float("nan"))
    (3.0, None, None)
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None
