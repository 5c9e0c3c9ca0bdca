"""What a person sees while a model trains: a progress line on a terminal, plain lines elsewhere, TensorBoard, wandb."""

import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bsvi.runs import Run
from bsvi.training import Watcher

SHOWN = ("bound", "svi_0", "svi_k", "bsvi_k", "kl")
CURVES = {"svi_k minus svi_0": ("svi_k", "svi_0"), "bsvi_k minus svi_k": ("bsvi_k", "svi_k")}  # Fig. 6a, 6b


class Screen(Watcher):
    """Prints; on a terminal as one live line with the time left, otherwise as plain lines."""

    def __init__(
        self, title: str, total: int, run: Run, loggers: "list[Any] | None" = None, quiet: bool = False
    ) -> None:
        self.console = Console(stderr=True)
        self.run, self.loggers, self.quiet = run, loggers or [], quiet
        self.live = self.console.is_terminal and not quiet
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}"),
        )
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[numbers]}"))
        self.progress = Progress(*columns, *times, console=self.console, disable=not self.live, refresh_per_second=4)
        self.task = self.progress.add_task(title, total=total, numbers="")
        self.total, self.started, self.first = total, time.monotonic(), -1
        self.said: dict[str, int] = {}

    def __enter__(self) -> "Screen":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
        for logger in self.loggers:
            logger.close()

    def step(self, step: int) -> None:
        if self.first < 0:
            self.first, self.started = step - 1, time.monotonic()
        if self.live:
            self.progress.update(self.task, completed=step)

    def train(self, line: dict[str, Any]) -> None:
        pace = (line["step"] - self.first) / max(time.monotonic() - self.started, 1e-9)
        numbers = [f"{pace:.3g} steps/s", *(f"{name} {line[name]:.2f}" for name in SHOWN)]
        numbers += [f"pi {line['buffer_weight_average']:.2f}", f"lr {line['lr']:g}"]
        if self.live:
            self.progress.update(self.task, numbers="  ".join(numbers))
        elif not self.quiet:
            left = (self.total - line["step"]) / max(pace, 1e-9)
            print(f"step {line['step']}/{self.total}  {clock(left)} left  {'  '.join(numbers)}", flush=True)
        for logger in self.loggers:
            logger.scalars("train", line)
            logger.scalars("curves", {"step": line["step"], **{n: line[a] - line[b] for n, (a, b) in CURVES.items()}})

    def valid(self, line: dict[str, Any], model: Any, batch: Any) -> None:
        mark = " (best so far)" if line["best"] else ""
        self.say(f"step {line['step']}: validation bound {line['bound']:.3f}{mark}", once=False)
        for logger in self.loggers:
            logger.scalars("valid", line)
            if line["best"]:
                logger.images(line["step"], model, batch)

    def say(self, line: str, once: bool = True) -> None:
        """A line for the person and for log.txt; a warning that comes again and again is said at doubling intervals."""
        self.run.note(line)
        key = line.split(":", 1)[-1].strip()[:24]
        self.said[key] = self.said.get(key, 0) + 1
        count = self.said[key]
        if once and count & (count - 1):
            return
        if not self.quiet:
            self.console.print(line, highlight=False, soft_wrap=True, markup=False)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


class TensorBoard:
    """Event files in the run folder, where the extra is installed."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)

    def scalars(self, group: str, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                self.writer.add_scalar(f"{group}/{name}", value, line["step"])

    def images(self, step: int, model: Any, batch: Any) -> None:
        from bsvi.experiments import reconstructions

        pairs = reconstructions(model, batch)
        grid = pairs.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # two rows of images, (height, width, 1)
        self.writer.add_image("reconstructions", grid, step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """Weights & Biases, opt-in; offline unless WANDB_MODE says otherwise, so nothing goes over the network unasked."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self.wandb = wandb.init(project="bsvi", dir=str(folder), config=config, name=folder.name)

    def scalars(self, group: str, line: dict[str, Any]) -> None:
        numbers = {f"{group}/{name}": value for name, value in line.items() if isinstance(value, int | float)}
        self.wandb.log(numbers, step=line["step"])

    def images(self, step: int, model: Any, batch: Any) -> None:
        pass

    def close(self) -> None:
        self.wandb.finish()
