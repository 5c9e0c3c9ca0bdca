"""What the claims are measured by: paired differences between methods over the same seeds and the same examples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.intervals import Interval, crossed_interval, interval_over_seeds
from bsvi.report.records import ReportedRun, SplitScores, to_number
from bsvi.tables.methods import find_label

Pair = tuple[ReportedRun, ReportedRun]
_NO_EXAMPLES = "without values per example"


@dataclass(frozen=True)
class Measurement:
    """A difference with its interval, or None with the reason, and what a reader should know about it."""

    interval: Interval | None
    note: str = ""


def measure_difference(
    experiment: ExperimentRuns, score: str, method: str, other: str, split: str = "test"
) -> Measurement:
    """The mean of `score` of `method` minus that of `other`, paired by seed and by example."""
    pairs = _find_pairs(experiment, method, other, lambda run: split in run.scores)
    if isinstance(pairs, str):
        return Measurement(None, f"{pairs} with {split} scores")
    return compare_pairs(pairs, score, split)


def measure_rows_difference(row: Row, other: Row, score: str, split: str = "test") -> Measurement:
    """The same for two rows of a table: two methods with the same settings, or two settings of one method."""
    if row.method != other.method and row.variant != other.variant:
        return Measurement(None, "other settings")
    pairs = pair_by_seed(row.select_scored(split), other.select_scored(split))
    return compare_pairs(pairs, score, split) if pairs else Measurement(None, "no seed in common")


def compare_pairs(pairs: list[Pair], score: str, split: str) -> Measurement:
    """The paired difference over examples and seeds; over seeds alone where values per example are missing."""
    values = _make_matrix([(run, score, other, score) for run, other in pairs], split)
    if isinstance(values, str):
        if values != _NO_EXAMPLES:
            return Measurement(None, values)
        means = [(run.scores[split].mean(score), other.scores[split].mean(score)) for run, other in pairs]
        known = [one - two for one, two in means if one is not None and two is not None]
        return (
            Measurement(interval_over_seeds(known), f"{values}: over seeds alone")
            if known
            else Measurement(None, f"no {score}")
        )
    return _measure_crossed(values)


def measure_gap_difference(experiment: ExperimentRuns, method: str, other: str) -> Measurement:
    """How much further `method`'s training likelihood is above its test likelihood than `other`'s: overfitting."""
    pairs = _find_pairs(experiment, method, other, lambda run: {"train", "test"} <= set(run.scores))
    if not isinstance(pairs, str):
        sides = [(run, "log_likelihood", other_run, "log_likelihood") for run, other_run in pairs]
        train, test = _make_matrix(sides, "train"), _make_matrix(sides, "test")
        if not isinstance(train, str) and not isinstance(test, str):
            return _measure_crossed(train, -test)
    pairs = _find_pairs(experiment, method, other, lambda run: bool(run.train and run.valid))
    if isinstance(pairs, str):
        return Measurement(None, f"{pairs} with training and validation curves")
    gaps = [_measure_curve_gaps(run, other_run) for run, other_run in pairs]
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return Measurement(None, "no validation at beta = 1 yet")
    return Measurement(
        interval_over_seeds(known), "from the curves (training minus validation bound), over seeds alone"
    )


def measure_tightness(experiment: ExperimentRuns, k: int = 500, particles: int = 2500) -> Measurement:
    """The BSVI estimate minus IWAE's on the same models and examples, averaged over the methods that share a seed."""
    split, name = "test", f"iwae_{particles}"
    by_method: dict[str, Measurement] = {}
    by_seed: dict[int, list[ReportedRun]] = {}
    for row in experiment.rows:
        runs = [run for run in row.select_scored(split) if name in run.scores[split].values]
        runs = [run for run in runs if run.scores[split].summary.get("k", k) == k]
        if runs and not row.variant:
            by_method[row.method] = _measure_tight(runs, name, split)
            for run in runs:
                by_seed.setdefault(run.seed, []).append(run)
    if not by_seed:
        return Measurement(None, f"needs test scores with BSVI-{k} and IWAE-{particles}")
    methods = {run.method for runs in by_seed.values() for run in runs}
    whole = {seed: runs for seed, runs in by_seed.items() if {run.method for run in runs} == methods}
    used_runs = [run for runs in (whole or by_seed).values() for run in runs]
    matrix = _make_tight_matrix(used_runs, name, split)
    if isinstance(matrix, str):
        return Measurement(None, matrix)
    seeds = np.array([run.seed for run in used_runs])
    measured = _measure_crossed(np.stack([matrix[seeds == seed].mean(axis=0) for seed in np.unique(seeds)]))
    known = {method: entry.interval.mean for method, entry in by_method.items() if entry.interval}
    if measured.interval is None or not known:
        return Measurement(None, measured.note)
    lowest = min(known, key=lambda method: known[method])
    note = f"lowest for {find_label(lowest)} ({known[lowest]:+.3f})"
    return Measurement(measured.interval, note)


def measure_in_training(
    experiment: ExperimentRuns, name: str, minus: str | float, methods: tuple[str, ...]
) -> Measurement:
    """The mean over the second half of training (beta = 1) of one metric minus another, averaged over methods by seed."""
    by_seed: dict[int, list[float]] = {}
    for method in methods:
        row = experiment.find_comparable(method)
        for run in row.runs if row else []:
            value = average_late(run, name, minus)
            if value is not None:
                by_seed.setdefault(run.seed, []).append(value)
    if not by_seed:
        return Measurement(None, f"needs training metrics of {' or '.join(methods)}")
    most = max(len(values) for values in by_seed.values())  # seeds with fewer methods would mix two differences
    return Measurement(
        interval_over_seeds([float(np.mean(values)) for values in by_seed.values() if len(values) == most])
    )


def average_late(run: ReportedRun, name: str, minus: str | float = 0.0) -> float | None:
    """The mean of `name` minus `minus` over the run's second half, at beta = 1 only: before, a number is not a bound."""
    last = max((line["step"] for line in run.train), default=0)
    values = []
    for line in run.train:
        one, two = to_number(line.get(name)), to_number(line.get(minus)) if isinstance(minus, str) else minus
        if one is not None and two is not None and line["step"] > last / 2 and _is_bound(line):
            values.append(one - two)
    return float(np.mean(values)) if values else None


def measure_time_ratio(experiment: ExperimentRuns, method: str, other: str) -> Measurement:
    """The logarithm of the ratio of the two methods' seconds per step, over seeds."""
    pairs = _find_pairs(experiment, method, other, lambda run: bool(run.pace))
    if isinstance(pairs, str):
        return Measurement(None, f"{pairs} with times")
    logs = [math.log((a.pace or 1.0) / (b.pace or 1.0)) for a, b in pairs]
    return Measurement(interval_over_seeds(logs), "as timed in these runs; other work on the machine moves it")


def _find_pairs(
    experiment: ExperimentRuns, method: str, other: str, usable: Callable[[ReportedRun], bool]
) -> list[Pair] | str:
    one, two = experiment.find_comparable(method), experiment.find_comparable(other)
    runs = [[run for run in row.runs if usable(run)] if row else [] for row in (one, two)]
    pairs = pair_by_seed(runs[0], runs[1])
    if pairs:
        return pairs
    missing = [find_label(name) for name, mine in ((method, runs[0]), (other, runs[1])) if not mine]
    if not missing:
        return "needs a seed in common"
    unlike = [row.label for row in experiment.left_out if find_label(row.method) in missing]
    return f"needs runs of {' and '.join(missing)}{' (unlike the others: ' + '; '.join(unlike) + ')' if unlike else ''}"


def pair_by_seed(runs: list[ReportedRun], others: list[ReportedRun]) -> list[Pair]:
    """Each run with that of the same seed among the others."""
    seeds = {run.seed: run for run in others}
    return [(run, seeds[run.seed]) for run in runs if run.seed in seeds]


def _make_matrix(
    rows: list[tuple[ReportedRun, str, ReportedRun, str]], split: str
) -> Float[np.ndarray, "seeds examples"] | str:
    """One row per pair of runs: a's score minus b's, on the examples that all of them have; else why not."""
    scores = [(a.scores[split], left, b.scores[split], right) for a, left, b, right in rows]
    both = [entry for one, _, two, _ in scores for entry in (one, two)]
    if len({str(entry.summary.get("data_sha256")) for entry in both}) > 1:
        return "the scores are of different data"
    unlike = _list_unlike([entry.made_by for entry in both])
    if unlike:
        return f"the {split} scores were made with different {unlike}"
    if any(left not in one.values or right not in two.values for one, left, two, right in scores):
        return _NO_EXAMPLES
    ids = [entry.ids for entry in both if entry.ids is not None]
    shared = ids[0]
    for other in ids[1:]:
        shared = np.intersect1d(shared, other)
    if len(shared) < 2:
        return "no two examples in common"

    return np.stack([_select_values(a, x, shared) - _select_values(b, y, shared) for a, x, b, y in scores])


def _list_unlike(settings: list[dict[str, Any]]) -> str:
    """The settings that differ, with their values; what is not known does not differ."""
    names = dict.fromkeys(name for entry in settings for name in entry)
    values = {name: sorted({str(entry[name]) for entry in settings if name in entry}) for name in names}
    return " and ".join(f"{name} ({', '.join(found)})" for name, found in values.items() if len(found) > 1)


def _select_values(scores: SplitScores, name: str, ids: Int[np.ndarray, " shared"]) -> Float[np.ndarray, " shared"]:
    position = {int(example): i for i, example in enumerate(scores.ids if scores.ids is not None else [])}
    return scores.values[name][[position[int(example)] for example in ids]]


def _measure_crossed(*parts: Float[np.ndarray, "seeds _"]) -> Measurement:
    bad = sum(int((~np.isfinite(part)).any(axis=0).sum()) for part in parts)
    if bad:
        return Measurement(None, f"{bad} examples have values that are not finite")
    interval = crossed_interval(*parts)
    return Measurement(interval, "" if interval.seeds > 1 else "one seed: the interval covers examples alone")


def _measure_tight(runs: list[ReportedRun], name: str, split: str) -> Measurement:
    matrix = _make_tight_matrix(runs, name, split)
    return Measurement(None, matrix) if isinstance(matrix, str) else _measure_crossed(matrix)


def _make_tight_matrix(runs: list[ReportedRun], name: str, split: str) -> Float[np.ndarray, "seeds examples"] | str:
    return _make_matrix([(run, "log_likelihood", run, name) for run in runs], split)


def _measure_curve_gaps(run: ReportedRun, other: ReportedRun) -> float | None:
    """Training minus validation bound of one run less the other's, both at the last step that both have validated."""
    steps = {int(line["step"]) for line in run.valid} & {int(line["step"]) for line in other.valid}
    if not steps:
        return None
    gaps = [_gap_at(one, max(steps)) for one in (run, other)]
    return gaps[0] - gaps[1] if gaps[0] is not None and gaps[1] is not None else None


def _gap_at(run: ReportedRun, step: int) -> float | None:
    valid = next((to_number(line.get("bound")) for line in run.valid if line["step"] == step), None)
    window = [line for line in run.train if 0.9 * step <= line["step"] <= step]
    bounds = [to_number(line.get("bound")) for line in window if _is_bound(line)]
    known = [bound for bound in bounds if bound is not None]
    return float(np.mean(known)) - valid if known and valid is not None else None


def _is_bound(line: dict[str, Any]) -> bool:
    beta = to_number(line.get("beta"))
    return beta is None or beta >= 1
