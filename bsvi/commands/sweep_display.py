"""One display for all runs of a sweep."""

import time
from typing import Any

from bsvi.sweep import ENDED, Job


class Display:
    """One display for all runs: a live table on a terminal, a line at each change elsewhere."""

    def __init__(self, plan: list[Job]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (
            TextColumn("{task.description:24}"),
            BarColumn(),
            TextColumn("{task.fields[stage]:10}"),
            TimeRemainingColumn(),
        )
        self.bars = Progress(*columns, console=console, disable=not self.live, refresh_per_second=2)
        self.tasks: dict[str, Any] = {
            job.name: self.bars.add_task(job.name, total=job.experiment.steps, stage=job.stage, start=False)
            for job in plan
        }
        self.stages: dict[str, str] = {}
        self.last = 0.0
        self.bars.start()

    def __call__(self, jobs: list[Job]) -> None:
        if time.monotonic() - self.last < 1.0 and any(job.stage in ("training", "evaluating") for job in jobs):
            return
        self.last = time.monotonic()
        for job in jobs:
            if job.stage != self.stages.get(job.name):
                self.stages[job.name] = job.stage
                if job.stage == "training":
                    self.bars.start_task(self.tasks[job.name])
                if job.stage == "waiting" and job.problem:  # why it waits again
                    self.bars.console.print(f"{job.name}: {job.problem}", highlight=False, soft_wrap=True)
                elif not self.live and job.stage != "waiting":
                    print(f"{job.name}: {job.stage}", flush=True)
            if self.live:
                done = job.experiment.steps if job.trained else job.step()
                self.bars.update(self.tasks[job.name], completed=done, stage=job.stage)
        if all(job.stage in ENDED for job in jobs):
            self.bars.stop()
