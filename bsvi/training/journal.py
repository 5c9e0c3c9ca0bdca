"""Where a training run writes: lines of metrics into its folder, and words and numbers to whoever watches."""

import math
from typing import Any

from bsvi.model import Model
from bsvi.runs.folder import Run
from bsvi.training.health import list_problems


class Watcher:
    """What sees the training: prints nothing. bsvi.training.watch has one for terminals."""

    def start(self, step: int) -> None: ...

    def train(self, line: dict[str, Any]) -> None: ...

    def step(self, step: int) -> None: ...

    def valid(self, line: dict[str, Any], model: Model, batch: Any) -> None: ...

    def say(self, line: str) -> None: ...


class Journal:
    """A run folder, where there is one, and a watcher."""

    def __init__(self, run: Run | None, watcher: Watcher) -> None:
        self.run, self.watcher = run, watcher

    def train(self, line: dict[str, Any]) -> None:
        """A line of metrics of training, and what is odd about it."""
        self._log(line)
        self.watcher.train(line)
        self.say(*list_problems(line))

    def valid(self, line: dict[str, Any], model: Model, batch: Any) -> None:
        """A line of metrics of validation, and what is odd about it."""
        self._log(line)
        self.watcher.valid(line, model, batch)
        odd = f"step {line['step']}: the validation bound is not finite: an image has no draw with a finite weight"
        self.say(*([] if math.isfinite(line["bound"]) else [odd]))

    def say(self, *lines: str) -> None:
        """Say these lines and the run folder's warnings, and keep them in log.txt."""
        if self.run is not None:
            lines = (*lines, *(f"warning: {line}" for line in self.run.warnings))
            self.run.warnings.clear()
        for line in lines:
            self.watcher.say(line)
            if self.run is not None:
                self.run.note(line)

    def _log(self, line: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.log(line)
