"""make_report(): run folders in, one folder with the page, the tables and the figures out."""

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from bsvi.report import render, run_tables, tables
from bsvi.report.beyond import check_beyond
from bsvi.report.cells import ReportTable
from bsvi.report.claim_tables import make_claims_table
from bsvi.report.claims import check_claims
from bsvi.report.estimates import make_estimates_table
from bsvi.report.experiments import ExperimentRuns, group_runs
from bsvi.report.figures import FIGURES, FIRST_FIGURES
from bsvi.report.page import Section, to_page
from bsvi.report.progress import read_progress
from bsvi.report.records import ReportedRun, ReportWarning
from bsvi.report.runs import find_runs, read_runs
from bsvi.report.style import to_bytes, use_style
from bsvi.report.words import write_summary
from bsvi.system.clock import CLOCKS
from bsvi.system.files import write_atomically

_WATCHED = (
    "config.json",
    "metrics.jsonl",
    "result.json",
    "scores.json",
    "scores-*.npz",
    "samples*.png",
    "samples/*.png",
)
_WRITERS = {"md": render.to_markdown, "tex": render.to_latex, "csv": render.to_csv}
Made = TypeVar("Made")


def make_report(
    runs: list[Path],
    out: Path,
    watch: bool = False,
    every: float = 15.0,
    wait: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """The report of runs: a page, tables (Markdown, LaTeX, CSV) and figures (PNG, PDF).

    Args:
        runs: run folders, or folders that hold some at any depth.
        out: the folder that it is written into: index.html, tables/ and figures/.
        watch: go on until interrupted: write the page again whenever the runs have changed, and have it reload itself; the
            figures' files are written at the end.
        every: seconds between looks at the runs; longer if writing takes long, so that it costs the runs at most a tenth.
        wait: how to wait, for tests.
        say: gets a line on what watching does: at its start, for every page written, and at its end.

    Returns:
        The path of the page.

    Example:
        >>> make_report([], Path("report"))
        Traceback (most recent call last):
        ...
        ValueError: a report needs at least one run folder, got none; for example: bsvi report runs -o report
    """
    places, out = [Path(run) for run in runs], Path(out)
    if not places:
        raise ValueError("a report needs at least one run folder, got none; for example: bsvi report runs -o report")
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file, not a folder; name another with -o")
    if not watch:
        _check(places)
        return _write(places, out, reload=0.0)
    page = out / "index.html"
    say(
        f"watching {', '.join(map(str, places))}: {page} is written again when a run has changed, an open one reloads itself"
    )
    say(f"a look every {every:g} s; Ctrl-C ends it and writes the files of the figures")
    seen: object = None
    try:
        while True:
            spent, now = CLOCKS["cpu"](), _state(places)
            if now != seen:
                _write(places, out, reload=every, say=say)
                seen = now
            wait(max(every, 9 * (CLOCKS["cpu"]() - spent)))
    except KeyboardInterrupt:
        say("ending: the last page and the files of the figures are being written")
        return _write(places, out, reload=0.0)


def _count(runs: list[ReportedRun]) -> str:
    """'8 runs, 2 of them running', or that there are none yet."""
    states = [run.state for run in runs]
    text = f"{len(states)} run{'s' * (len(states) != 1)}" if states else "no runs yet"
    return f"{text}, {states.count('running')} of them running" if "running" in states else text


def _check(places: list[Path]) -> None:
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"{place} does not exist; a report needs run folders, such as runs/digits")
        if not find_runs([place]):
            raise ValueError(
                f"no run folder (one with a config.json or a metrics.jsonl) at or below {place}; bsvi train makes one"
            )


def _write(places: list[Path], out: Path, reload: float, say: Callable[[str], None] = lambda line: None) -> Path:
    runs, warnings = read_runs(places)
    with use_style():
        sections = [_section(experiment) for experiment in _group(runs, warnings)]
        for section in sections:
            for table in (*section.claims, *section.scores, *section.about_runs):
                for suffix, write in _WRITERS.items():
                    path = out / "tables" / f"{table.name}.{suffix}"
                    write_atomically(path, write(table).encode(errors="replace"), within=out)
            for drawn in (*section.first, *section.figures) if not reload else ():
                for kind in ("png", "pdf"):
                    path = out / "figures" / f"{drawn.name}.{kind}"
                    write_atomically(path, to_bytes(drawn.figure, kind), within=out)
        progress = read_progress(places) if reload else None
        page = to_page(sections, tables.make_paper_tables(), warnings, reload, progress)
    path = out / "index.html"
    write_atomically(path, page.encode(errors="replace"))
    say(f"{time.strftime('%H:%M:%S')} written: {_count(runs)}{f', {len(warnings)} left out' if warnings else ''}")
    return path


def _group(runs: list[ReportedRun], warnings: list[ReportWarning]) -> list[ExperimentRuns]:
    """The experiments; runs with which there would be none are left out, each with a warning."""
    try:
        return group_runs(runs)
    except Exception:
        kept = []
        for run in runs:
            try:
                group_runs([run])
                kept.append(run)
            except Exception as error:
                warnings.append(
                    ReportWarning(str(run.path), f"{type(error).__name__}: {error}: the folder is left out")
                )
        return group_runs(kept)


def _section(experiment: ExperimentRuns) -> Section:
    warnings = list(experiment.warnings)

    def attempt(name: str, make: Callable[[], Made | None]) -> list[Made]:
        """What `make` makes, as a list of one or none: one strange run must not cost the reader the whole page."""
        try:
            made = make()
            return [] if made is None else [made]
        except Exception as error:
            warnings.append(ReportWarning("", f"{name} could not be made ({type(error).__name__}: {error})"))
            return []

    known = any(not row.beyond for row in experiment.rows)  # else the paper says nothing about these runs
    lines = next(iter(attempt("the check of claims", lambda: check_claims(experiment) if known else [])), [])
    beyond = next(iter(attempt("the check of claims beyond the paper", lambda: check_beyond(experiment))), [])
    sentences = next(iter(attempt("the summary", lambda: write_summary(experiment, lines, beyond))), [])
    claims = attempt("the table of claims", lambda: make_claims_table(experiment, lines) if lines else None)
    claims += attempt(
        "the table of claims beyond the paper",
        lambda: make_claims_table(experiment, beyond, beyond=True) if beyond else None,
    )
    scores: list[ReportTable] = []
    for split in experiment.splits():
        scores += attempt(f"the table of {split} scores", partial(tables.make_scores_table, experiment, split))
        if split == "test":
            scores += attempt("the table of differences", partial(tables.make_differences_table, experiment))
            scores += attempt("the IWAE comparison", partial(tables.make_iwae_table, experiment))
            scores += attempt("the table of estimators", partial(make_estimates_table, experiment))
    about = attempt("the table of cost", partial(run_tables.make_cost_table, experiment))
    about += attempt("the table of runs", partial(run_tables.make_runs_table, experiment))
    first, figures = [
        [made for draw in draws for made in attempt(_name_figure(draw), partial(draw, experiment))]
        for draws in (FIRST_FIGURES, FIGURES)
    ]
    return Section(experiment, lines, sentences, claims, scores, about, first, figures, warnings)


def _name_figure(draw: Callable[..., object]) -> str:
    return f"the figure of {draw.__name__.removeprefix('draw_').replace('_', ' ')}"


def _state(places: Iterable[Path]) -> object:
    """Everything whose change makes a new page worth while."""
    found = []
    for folder in find_runs(places):
        for pattern in _WATCHED:
            for path in folder.glob(pattern):
                try:
                    status = path.lstat()
                    found.append((str(path), status.st_mtime_ns, status.st_size))
                except OSError:
                    continue  # gone again between the two looks
    return sorted(found)
