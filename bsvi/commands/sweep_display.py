"""One display for all runs of a sweep: stage, bound and time left of each, and of all together."""

import contextlib
import json
import math
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsvi.sweeps.jobs import ENDED, Job
from bsvi.system.clock import Stopwatch, format_duration
from bsvi.system.files import open_to_read, write_atomically
from bsvi.system.reading import read_json
from bsvi.system.terminal import open_console

RUNNING = ("training", "evaluating", "drawing")
ORDER = (*RUNNING, "failed", "stopped", "waiting", "done")  # who is shown first where there is no room for all
TELL_EVERY = 5.0  # seconds between two files of progress


@dataclass(frozen=True)
class TimeLeft:
    """Seconds of the clock to come, the share of the work that is done, and whether no image was evaluated yet."""

    seconds: float
    share: float
    no_images: bool


@dataclass
class JobProgress:
    """How far a run is, as its folder tells: steps and images done, the seconds they took, the latest bound."""

    step: int = 0
    seconds: float = 0.0
    spent: float = 0.0  # of them in updates
    bound: float = math.nan
    images: int = 0
    all_images: int = 0
    image_seconds: float = 0.0
    store: Path | None = None
    offset: int = 0

    def update(self, job: Job) -> None:
        line = job.last_line()
        if isinstance(step := line.get("step"), int) and isinstance(seconds := line.get("seconds"), int | float):
            self.step, self.seconds = step, seconds
            bound, spent = line.get("bound"), line.get("spent")
            self.spent = spent if isinstance(spent, int | float) else 0.0
            self.bound = bound if isinstance(bound, int | float) else math.nan
        if job.stage == "evaluating":
            self.all_images = self.all_images or count_images(job)
            self._count_store(job)

    def _count_store(self, job: Job) -> None:
        """Count the images in the lines that have come since the last look."""
        try:
            stores = [path for path in job.folder.glob("evaluation-test-*.jsonl") if ".share-" not in path.name]
            newest = max(stores, key=lambda path: path.stat().st_mtime_ns, default=None)
            if newest is None:
                return
            if newest != self.store:
                self.store, self.offset, self.images, self.image_seconds = newest, 0, 0, 0.0
            with open_to_read(newest) as file:
                file.seek(self.offset)
                new = file.read()
        except OSError:
            return
        new = new[: new.rfind(b"\n") + 1]
        self.offset += len(new)
        for line in new.splitlines():
            ids, seconds = re.search(rb'"ids":\[([^\]]+)\]', line), re.findall(rb'"seconds":([\d.e+-]+)', line)
            if ids and seconds:
                self.images += ids[1].count(b",") + 1
                self.image_seconds += float(seconds[-1])

    def training_left(self, job: Job) -> float | None:
        """Seconds of training to come at the pace so far; None where there is no pace yet."""
        if job.trained:
            return 0.0
        done, of, _ = self.count_training(job)
        return self.pace(job) * max(0, of - done) if done else None

    def pace(self, job: Job) -> float:
        """Seconds of the clock for an update, or for a second of updates where the run has so many; after the first."""
        return self.seconds / max(self.count_training(job)[0], 1e-9)

    def count_training(self, job: Job) -> tuple[float, float, str]:
        """How much of its training a run has done, of how much, and in what: seconds where it has so many, else updates."""
        if job.experiment.seconds:
            return min(self.spent, job.experiment.seconds), job.experiment.seconds, " s"
        return float(self.step), float(job.experiment.steps), ""

    def evaluation_left(self) -> float | None:
        return self.image_seconds / self.images * max(0, self.all_images - self.images) if self.images else None


def count_images(job: Job) -> int:
    """How many test images an evaluation has; 0 where that cannot be told yet."""
    try:
        images = int(read_json(job.folder / "config.json")["data"]["test"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    words = job.evaluate
    return min(images, int(words[words.index("--examples") + 1])) if "--examples" in words else images


class Display:
    """``with Display(plan) as show: show(jobs)``: a live table on a terminal, a line at each change elsewhere."""

    def __init__(self, plan: list[Job], workers: int = 1, progress: Path | None = None) -> None:
        from rich.live import Live

        self.console = open_console()
        self.jobs, self.workers = plan, workers
        self.progress = progress  # the file that tells others
        self.told: Stopwatch | None = None  # since it was written
        self.seen = {job.name: JobProgress() for job in plan}
        self.stages: dict[str, str] = {}
        self.last: Stopwatch | None = None  # since the last look
        self.live: Live | None = None
        if self.console.is_terminal:
            self.live = Live(console=self.console, get_renderable=self.render, auto_refresh=False)

    def __enter__(self) -> "Display":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()  # draws once more, and leaves that on the screen
        self.told = None
        self.write_progress()

    def __call__(self, jobs: list[Job]) -> None:
        ended = all(job.stage in ENDED for job in jobs)
        if self.last is not None and self.last.seconds < 1.0 and not ended:
            return
        self.last = Stopwatch()
        for job in jobs:
            changed = job.stage != self.stages.get(job.name)
            if changed or job.stage in RUNNING:
                self.seen[job.name].update(job)
            if changed:
                self.stages[job.name] = job.stage
                self.print_stage(job)
        if self.live is not None:
            self.live.refresh()
        self.write_progress()

    def print_stage(self, job: Job) -> None:
        """A line for a run whose stage has changed, where there is no live table; why it waits again in any case."""
        if job.stage == "waiting" and job.problem:
            self.console.print(f"{job.name}: {job.problem}", highlight=False, soft_wrap=True, markup=False)
        elif self.live is None and job.stage != "waiting":
            bound = self.seen[job.name].bound
            trained = f", bound {bound:.2f}" if job.stage in ("evaluating", "done") and math.isfinite(bound) else ""
            print(f"{job.name}: {job.stage}{trained}", flush=True)

    def render(self) -> Any:
        """As many runs as there are lines for, those that run first; then all together."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        room = max(1, self.console.size.height - 3)
        shown = sorted(self.jobs, key=lambda job: ORDER.index(job.stage))[:room]
        table = Table.grid(padding=(0, 1))
        narrow = self.console.size.width < 80  # a percentage in place of bar and counts
        for width in (max(len(job.name) for job in shown), 10, 4 if narrow else 10, *([] if narrow else [1]), 1):
            table.add_column(no_wrap=True, overflow="ellipsis", min_width=width)
        for job in (job for job in self.jobs if job in shown):
            seen = self.seen[job.name]
            (done, of, what), left = seen.count_training(job), seen.training_left(job)
            if job.stage == "evaluating":
                done, of, what, left = float(seen.images), float(seen.all_images), " images", seen.evaluation_left()
            elif job.trained:
                done = of
            bar = ProgressBar(total=max(of, 1), completed=min(done, of), width=10)
            far: list[Any] = [bar, Text(f"{done:.0f}/{of:.0f}{what}")]
            if narrow:
                far = [Text(f"{100 * min(done, of) / max(of, 1):3.0f}%")]
            bound = f"bound {seen.bound:.2f}  " if math.isfinite(seen.bound) else ""
            last = f"{format_duration(left)} left" if job.stage in RUNNING and left is not None else job.problem[:60]
            table.add_row(Text(job.name), Text(job.stage), *far, Text(bound + last))
        return Group(table, Text(self.summary(len(shown)), no_wrap=True, overflow="ellipsis"))

    def summary(self, shown: int) -> str:
        """The share of the work that is done, the time left of all, and how many runs are where."""
        counts = Counter(job.stage for job in self.jobs)
        parts = [f"{counts[stage]} {stage}" for stage in ("done", *RUNNING, "waiting", "stopped", "failed")]
        told = ", ".join(part for part in parts if not part.startswith("0 "))
        more = f"; {len(self.jobs) - shown} more are not shown" if shown < len(self.jobs) else ""
        return f"{len(self.jobs)} runs{self.time_left()}: {told}{more}"

    def time_left(self) -> str:
        """The share that is done and the time left, in words; what was not seen yet is named."""
        found = self.estimate_left()
        if found is None or not found.seconds:
            return ""
        share = f", {100 * found.share:.0f}% done, about {format_duration(found.seconds)} left"
        return share + (" before evaluation" if found.no_images else "")

    def estimate_left(self) -> "TimeLeft | None":
        """The work to come at the paces seen so far, shared among the workers; None before the first pace.

        A run that has not begun goes at the pace of its method, or where there is none yet at the mean pace.
        """
        left, spent = 0.0, 0.0
        paces: dict[str, list[float]] = {}
        for job in self.jobs:
            if self.seen[job.name].step:
                paces.setdefault(job.experiment.method, []).append(self.seen[job.name].pace(job))
        all_paces = [pace for known in paces.values() for pace in known]
        judged = [seen.image_seconds / seen.images for seen in self.seen.values() if seen.images]
        for job in self.jobs:
            seen = self.seen[job.name]
            spent += seen.seconds + seen.image_seconds
            if job.stage in ENDED:
                continue
            training = seen.training_left(job)
            if training is None:
                known = paces.get(job.experiment.method, all_paces)
                if not known:
                    return None
                training = sum(known) / len(known) * seen.count_training(job)[1]
            left += training
            if judged:
                images = max(0, (seen.all_images or max(s.all_images for s in self.seen.values())) - seen.images)
                left += sum(judged) / len(judged) * images
        active = max(1, min(self.workers, sum(job.stage not in ENDED for job in self.jobs)))
        return TimeLeft(left / active, spent / (spent + left) if spent + left else 0.0, not judged)

    def write_progress(self) -> None:
        """Tell others, such as a page that is being watched, how far the sweep is; what cannot be written is not told."""
        if self.progress is None or (self.told is not None and self.told.seconds < TELL_EVERY):
            return
        self.told, found = Stopwatch(), self.estimate_left()
        counts = Counter(job.stage for job in self.jobs)
        about: dict[str, Any] = {"runs": len(self.jobs), **{stage: counts[stage] for stage in ORDER}}
        about |= {"seconds_left": None if found is None else round(found.seconds, 1), "written": round(time.time(), 1)}
        with contextlib.suppress(OSError):
            write_atomically(self.progress, json.dumps(about).encode())
