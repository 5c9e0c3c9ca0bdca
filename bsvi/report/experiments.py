"""Runs put in order: one experiment per name, one row per method and setting, seeds within a row."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from bsvi.report.paper import ORDER, find_dataset
from bsvi.report.records import ReportedRun, ReportWarning, to_number
from bsvi.report.settings import make_settings_key, read_circumstances, read_settings
from bsvi.tables.methods import METHODS, find_label

_ROOM = 26  # letters beside a line or a point of a figure


@dataclass(frozen=True)
class Row:
    """The runs of one method with the same settings, one per seed; `variant` says how they differ from the others'.

    Rows without a variant agree in all but the method, so that their runs compare.
    """

    method: str
    variant: str
    runs: list[ReportedRun]
    number: int = 0  # in the list of names that are too long for a figure

    @property
    def label(self) -> str:
        """The paper's name of the method, with the variant.

        >>> Row("bsvi-sir", "svi.lr = 0.1", []).label
        'BSVI-k-SIR (svi.lr = 0.1)'
        """
        name = find_label(self.method)
        return f"{name} ({self.variant})" if self.variant else name

    @property
    def short(self) -> str:
        """The label, or where a figure has no room for it the method and the row's number in the list beside the figures."""
        if not self.number:
            return self.label
        name = find_label(self.method)
        return f"{name} [{self.number}]" if len(name) <= _ROOM - 5 else f"[{self.number}]"

    @property
    def beyond(self) -> bool:
        """Whether the method is none of the paper's, which has nothing to say about it."""
        return self.method not in ORDER

    def select_scored(self, split: str) -> list[ReportedRun]:
        return [run for run in self.runs if split in run.scores]

    def means(self, split: str, score: str) -> list[float]:
        """The score's mean over examples, one per seed that has it."""
        means = [run.scores[split].mean(score) for run in self.select_scored(split)]
        return [mean for mean in means if mean is not None]

    @property
    def pace(self) -> float | None:
        """Seconds per update of the fastest seed: other work on a machine only ever adds to a time."""
        return min((pace for run in self.runs if (pace := run.pace) is not None), default=None)


@dataclass(frozen=True)
class ExperimentRuns:
    """All runs of one experiment: rows in the paper's order, warnings, and the paper's data set it can be laid beside."""

    name: str
    rows: list[Row]
    dataset: str | None
    warnings: list[ReportWarning]

    @property
    def runs(self) -> list[ReportedRun]:
        return [run for row in self.rows for run in row.runs]

    def find_comparable(self, method: str) -> Row | None:
        """The method's row that agrees with the others in all but the method: the one that claims are about."""
        return next((row for row in self.rows if row.method == method and not row.variant), None)

    def find_row(self, method: str) -> Row | None:
        """The same, or where there is none the method's largest row: to show it, never to compare it."""
        mine = [row for row in self.rows if row.method == method]
        return self.find_comparable(method) or max(mine, key=lambda row: len(row.runs), default=None)

    @property
    def left_out(self) -> list[Row]:
        """The rows that no claim is about, as they differ from the others in more than the method."""
        return [row for row in self.rows if row.variant]

    @property
    def seconds(self) -> float | None:
        """The seconds of updates that every run has which claims compare (`--equal-time`); None: equally many updates."""
        alike = [run for row in self.rows if not row.variant for run in row.runs]
        found = {to_number(read_settings(run).get("seconds")) for run in alike}
        return found.pop() if len(found) == 1 else None

    def splits(self) -> list[str]:
        return [split for split in ("test", "train", "valid") if any(split in run.scores for run in self.runs)]


def group_runs(runs: list[ReportedRun]) -> list[ExperimentRuns]:
    """Experiments by name; a method's runs with other settings (an ablation) become rows of their own."""
    names = sorted({run.experiment for run in runs})
    return [_make_experiment(name, [run for run in runs if run.experiment == name]) for name in names]


def _make_experiment(name: str, runs: list[ReportedRun]) -> ExperimentRuns:
    kept, warnings = _drop_repeats(runs)
    usual = _find_usual(kept)
    rows: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in kept:
        variant = _describe_variant(run, *usual)
        if run.own and "seed" not in run.config and (run.method, variant) in rows:
            variant = f"in {run.path.parent}"  # of the same name, but nobody says that it is the same
        rows.setdefault((run.method, variant), []).append(run)
    order = {method: i for i, method in enumerate(dict.fromkeys((*ORDER, *METHODS)))}
    ordered = sorted(rows, key=lambda key: (order.get(key[0], len(order)), key))
    warnings += _data_warnings(kept) + _score_warnings(kept)
    known = [run for run in kept if run.method in ORDER]  # beside runs of other methods the paper has nothing to say
    sets = {find_dataset(str(run.part("data").get("name", name))) for run in known}
    return ExperimentRuns(
        name=name,
        rows=_number_rows([Row(method, variant, rows[method, variant]) for method, variant in ordered]),
        dataset=sets.pop() if len(sets) == 1 else None,
        warnings=warnings + [warned for run in kept for warned in run.warnings],
    )


def _number_rows(rows: list[Row]) -> list[Row]:
    long = [row.label for row in rows if len(row.label) > _ROOM]
    return [replace(row, number=long.index(row.label) + 1) if row.label in long else row for row in rows]


def _drop_repeats(runs: list[ReportedRun]) -> tuple[list[ReportedRun], list[ReportWarning]]:
    """Of folders with equal method, seed and settings only the furthest counts, or one run would be counted twice."""
    best: dict[Any, ReportedRun] = {}
    warnings = []
    for run in sorted(runs, key=lambda run: (len(run.scores), run.result is not None, run.steps), reverse=True):
        key = (
            run.method,
            run.seed,
            make_settings_key(run),
            read_circumstances(run).get("data"),
            run.path if run.own else None,
        )
        if key in best:
            text = f"the same method, seed and settings as {best[key].path}, which is further: left out"
            warnings.append(ReportWarning(str(run.path), text, text.replace(str(best[key].path), "another folder")))
        best.setdefault(key, run)
    return sorted(best.values(), key=lambda run: (run.method, run.seed, str(run.path))), warnings


def _find_usual(runs: list[ReportedRun]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings, then the circumstances, under which the most runs of different methods meet on a seed."""
    by_settings: dict[Any, list[ReportedRun]] = {}
    for run in runs:
        by_settings.setdefault(make_settings_key(run), []).append(run)
    shared, alike = max(by_settings.items(), key=lambda item: _count_meetings(item[1]))
    beside: dict[str, str] = {}
    known = {run.path: {name: repr(value) for name, value in read_circumstances(run).items()} for run in alike}
    for name in dict.fromkeys(name for run in alike for name in known[run.path]):
        values = dict.fromkeys(known[run.path][name] for run in alike if name in known[run.path])
        if values:
            groups = {value: [run for run in alike if known[run.path].get(name) == value] for value in values}
            beside[name] = max(groups, key=lambda value: _count_meetings(groups[value]))
            alike = [run for run in alike if known[run.path].get(name, beside[name]) == beside[name]]
    return dict(shared), beside


def _count_meetings(runs: list[ReportedRun]) -> tuple[int, int]:
    """Pairs of different methods on one seed, then the number of runs."""
    methods = Counter(seed for seed, _ in {(run.seed, run.method) for run in runs})
    return sum(n * (n - 1) // 2 for n in methods.values()), len(runs)


def _describe_variant(run: ReportedRun, shared: dict[str, str], beside: dict[str, str]) -> str:
    """How the run differs from those that compare, in words; '' where it is one of them."""
    own, known = read_settings(run), read_circumstances(run)
    changed = [f"{key} = {own[key]}" for key in sorted(own) if repr(own[key]) != shared.get(key)]
    if own or not run.own:  # of a user's own run without settings nothing is known
        changed += [f"no {key}" for key in sorted(set(shared) - set(own))]
    if f"steps = {known.get('updates')}" in changed:
        del known["updates"]  # said already
    other = [key for key in known if key in beside and repr(known[key]) != beside[key]]
    return ", ".join(changed + [f"{key} = {known[key]}" for key in other])


def _data_warnings(runs: list[ReportedRun]) -> list[ReportWarning]:
    hashes = Counter(str(run.part("data")["sha256"]) for run in runs if "sha256" in run.part("data"))
    if len(hashes) < 2:
        return []
    return [
        ReportWarning(
            "", f"the runs saw {len(hashes)} different data sets (by hash): only runs on the same one compare"
        )
    ]


def _score_warnings(runs: list[ReportedRun]) -> list[ReportWarning]:
    warnings = []
    for run in runs:
        if run.scores and run.result is None:
            text = f"scored at step {run.steps} before its training had ended: go on training, then evaluate again"
            warnings.append(ReportWarning(str(run.path), text))
    for split in ("test", "valid", "train"):
        scored = [run for run in runs if split in run.scores]
        for name, what in (("k", "numbers of steps k"), ("examples", "numbers of examples")):
            found = sorted({str(run.scores[split].summary.get(name)) for run in scored})
            if len(found) > 1:
                warnings.append(
                    ReportWarning("", f"{split} scores were made with different {what}: {', '.join(found)}")
                )
        for run in scored:
            step, best = run.scores[split].summary.get("checkpoint_step"), (run.result or {}).get("best_step")
            if step is not None and best is not None and step != best:
                text = f"{split} scores are of step {step}, the best weights are now of step {best}: evaluate again"
                warnings.append(ReportWarning(str(run.path), text))
    return warnings
