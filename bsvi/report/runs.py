"""Run folders read into plain records (docs/run_folder.md). What cannot be read becomes a warning, never a crash."""

import math
import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bsvi.report.records import MOST_STEPS, ReportedRun, ReportWarning, SplitScores, to_number
from bsvi.system.arrays import read_arrays
from bsvi.system.files import open_to_read, printable
from bsvi.system.reading import parse_json, read_json

SPLITS = ("test", "valid", "train")
_METRICS = 1 << 28  # bytes of metrics.jsonl: some 400,000 lines
_LINE = 1 << 20  # of one line
QUIET_AFTER = 600.0  # seconds without a new line, after which an unended run counts as stopped


def find_runs(places: Iterable[Path]) -> list[Path]:
    """The run folders (those with a config.json or a metrics.jsonl) at or below the places, sorted and without doubles."""
    found: dict[Path, Path] = {}
    for place in places:
        for name in ("config.json", "metrics.jsonl"):
            for path in sorted(Path(place).rglob(name)):
                found.setdefault(path.parent.resolve(), path.parent)
    return sorted(found.values())


def read_runs(places: Iterable[Path]) -> tuple[list[ReportedRun], list[ReportWarning]]:
    """Every run below the places that can be read, and a warning about each of the rest."""
    runs: list[ReportedRun] = []
    warnings: list[ReportWarning] = []
    for folder in find_runs(places):
        try:
            runs.append(_read_run(folder))
        except Exception as error:  # whatever it is: one bad folder must not cost the reader all the others
            text = str(error) if isinstance(error, NotARun) else f"{type(error).__name__}: {error}"
            warnings.append(ReportWarning(str(folder), f"{printable(text, 1000)}: the folder is left out"))
    return runs, warnings


class NotARun(ValueError):
    """Why a folder is no run that can be shown."""


def _read_config(folder: Path) -> tuple[dict[str, Any], bool]:
    """The configuration, and whether the run is a user's own, whose method, seed and experiment are read off its place.

    `bsvi.train(run=...)` writes no config.json, and a user may have put another one there. Like the folders of `bsvi
    train`, EXPERIMENT/METHOD-seedN is then what it says; any other name is a method of its own.
    """
    config, problem = _read_json(folder / "config.json") if (folder / "config.json").exists() else ({}, None)
    if not isinstance(config, dict):
        raise NotARun(problem or "config.json is not a table of settings")
    if "method" in config:
        return config, False
    if not any((folder / name).exists() for name in ("metrics.jsonl", "result.json")):
        raise NotARun("config.json names no method, and there are no metrics")
    place = folder.resolve()
    name = re.fullmatch(r"(.+)-seed(\d{1,9})", place.name)
    about: dict[str, Any] = {"experiment": place.parent.name or "unnamed", "method": name[1] if name else place.name}
    about |= {"seed": int(name[2])} if name else {}
    return {"config": config} | about | config, True


def _read_run(folder: Path) -> ReportedRun:
    config, own = _read_config(folder)
    warnings: list[ReportWarning] = []

    def warn(text: str | None) -> None:
        if text:
            warnings.append(ReportWarning(str(folder), printable(text, 1000)))

    lines, problem = _read_metrics(folder / "metrics.jsonl")
    warn(problem)
    result, scores = None, {}
    if (folder / "result.json").exists():
        result, problem = _read_json(folder / "result.json")
        warn(problem)
    if (folder / "scores.json").exists():
        summaries, problem = _read_json(folder / "scores.json")
        warn(problem)
        for split in SPLITS:
            if isinstance(summaries, dict) and isinstance(summaries.get(split), dict):
                found, problem = _read_scores(folder, split, summaries[split])
                others = sum(1 for _ in folder.glob(f"evaluation-{split}-*.json"))
                scores[split] = replace(found, results=max(1, others))
                warn(problem)
                told = summaries[split].get("warnings")
                for text in told if isinstance(told, list) else []:
                    warn(f"{split}: {text}")
    return ReportedRun(
        path=folder,
        config=config,
        train=[line for line in lines if line.get("split") == "train"],
        valid=[line for line in lines if line.get("split") == "valid"],
        result=result if isinstance(result, dict) else None,
        scores=scores,
        pictures=[*sorted(folder.glob("samples/latents.png")), *sorted(folder.glob("samples*.png"))],
        active=_age(folder / "metrics.jsonl") < QUIET_AFTER,
        warnings=warnings,
        own=own,
    )


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The lines that can be read, in order of steps; a run that is being written, or was killed, may end in half a one."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    bad = count = 0
    last_is_bad = False
    try:
        with open_to_read(path) as file:
            if os.fstat(file.fileno()).st_size > _METRICS:
                return [], f"metrics.jsonl has more than {_METRICS:,} bytes and is not read"
            while text := file.readline(_LINE):
                line = _parse_line(text)
                count += 1
                last_is_bad = line is None
                bad += last_is_bad
                if line is not None:  # after a resume the later line counts
                    lines[str(line["split"]), line["step"]] = line
    except FileNotFoundError:
        return [], None  # nothing logged yet, which the run's state says
    except OSError as error:
        return [], f"metrics.jsonl {error.strerror}"
    bad -= last_is_bad
    problem = f"metrics.jsonl: {bad} of {count} lines could not be read and are left out" if bad else None
    return sorted(lines.values(), key=lambda line: line["step"]), problem


def _parse_line(text: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(text, nan=True)
        step = to_number(line["step"])
        if step is None or not 0 <= step < MOST_STEPS:
            return None
        return line | {"split": printable(line["split"], 40), "step": int(step)}
    except (ValueError, KeyError, TypeError):
        return None


def _read_scores(folder: Path, split: str, summary: dict[str, Any]) -> tuple[SplitScores, str | None]:
    path = folder / f"scores-{split}.npz"
    try:
        arrays = read_arrays(path)
        ids = arrays["ids"].astype(np.int64)
        values = {
            name: array.astype(np.float64)
            for name, array in arrays.items()
            if array.shape == ids.shape and array.dtype.kind == "f"
        }
        return SplitScores(summary, ids, values), None
    except FileNotFoundError:
        return SplitScores(summary), f"{path.name} is missing: {split} scores without pairs of examples"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return SplitScores(summary), f"{path.name} cannot be read ({_explain(error)}): scores without pairs of examples"


def _read_json(path: Path) -> tuple[Any, str | None]:
    try:
        return read_json(path, nan=True), None
    except (OSError, ValueError) as error:
        return None, f"{path.name} cannot be read ({_explain(error)}): run the command that wrote it again"


def _explain(error: Exception) -> str:
    return printable(error.strerror or error, 200) if isinstance(error, OSError) else type(error).__name__


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return math.inf
