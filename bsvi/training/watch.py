"""What a person sees while a model trains: a progress line on a terminal, plain lines elsewhere, TensorBoard, wandb."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from bsvi.parameters import in_eval_mode
from bsvi.system.clock import Stopwatch, format_duration
from bsvi.system.files import make_folder
from bsvi.system.terminal import open_console
from bsvi.training.loop import Watcher

SHOWN = ("bound", "svi_0", "svi_k", "bsvi_k", "kl")
CURVES = {  # the paper's training curves, Fig. 6
    "svi_k minus svi_0": lambda line: line["svi_k"] - line["svi_0"],
    "bsvi_k minus svi_k": lambda line: line["bsvi_k"] - line["svi_k"],
    "buffer weight average": lambda line: line["buffer_weight_average"],
}


@runtime_checkable
class Logger(Protocol):
    """A place for numbers and pictures beside metrics.jsonl."""

    def start(self, step: int) -> None: ...

    def scalars(self, group: str, line: dict[str, Any]) -> None: ...

    def images(self, step: int, model: Any, batch: Any) -> None: ...

    def close(self) -> None: ...


class Lines(Progress):
    """A bar, and below it the numbers, so that neither is cut off on a narrow terminal."""

    numbers = ""

    def get_renderables(self) -> Iterator[Table | Text]:
        yield self.make_tasks_table(self.tasks)
        yield Text(self.numbers)


class Screen(Watcher):
    """Prints; on a terminal live, with a bar and the time left, otherwise as plain lines.

    ``total`` is the number of updates; with ``seconds`` the run ends after so many seconds of them, and the bar shows those.
    """

    def __init__(
        self,
        title: str,
        total: int,
        loggers: "list[Logger] | None" = None,
        quiet: bool = False,
        seconds: float | None = None,
    ) -> None:
        self.console = open_console()
        # rich's own would end the program
        self.console.on_broken_pipe = drop_output
        self.loggers, self.quiet = list(loggers or []), quiet
        self.live = self.console.is_terminal and not quiet
        self.progress = Lines(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.completed:.0f}/{task.total:.0f}" + (" s" if seconds else "")),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
            refresh_per_second=4,
        )
        self.task = self.progress.add_task(title, total=seconds or total)
        self.total, self.seconds, self.watch, self.first = total, seconds, Stopwatch(), 0
        self.said: dict[str, int] = {}

    def __enter__(self) -> "Screen":
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
        self.log("close")

    def start(self, step: int) -> None:
        self.log("start", step)
        self.first, self.watch = step, Stopwatch()
        # the steps taken before say nothing about the pace
        self.progress.reset(self.task, completed=0 if self.seconds else step)

    def step(self, step: int) -> None:
        if self.live and not self.seconds:
            self.progress.update(self.task, completed=step)

    def train(self, line: dict[str, Any]) -> None:
        pace = (line["step"] - self.first) / max(self.watch.seconds, 1e-9)
        numbers = [f"{pace:.3g} steps/s", *(f"{name} {line[name]:.2f}" for name in SHOWN)]
        numbers += [f"pi {line['buffer_weight_average']:.2f}", f"lr {line['lr']:g}"]
        if self.live:
            self.progress.numbers = "  ".join(numbers)
            if self.seconds:
                self.progress.update(self.task, completed=line["spent"])
        else:
            steps, left = f"{line['step']}/{self.total}", (self.total - line["step"]) / max(pace, 1e-9)
            if self.seconds:
                steps, left = str(line["step"]), max(0.0, self.seconds - line["spent"])
            told = f"step {steps}  {format_duration(left)} left  {'  '.join(numbers)}"
            self.show(lambda: print(told, flush=True))
        self.log("scalars", "train", line)
        self.log("scalars", "curves", {"step": line["step"], **{name: of(line) for name, of in CURVES.items()}})

    def valid(self, line: dict[str, Any], model: Any, batch: Any) -> None:
        mark = " (best so far)" if line["best"] else ""
        self.show(lambda: self.print(f"step {line['step']}: validation bound {line['bound']:.3f}{mark}"))
        self.log("scalars", "valid", line)
        if line["best"]:
            self.log("images", line["step"], model, batch)

    def say(self, line: str) -> None:
        """A line for the person; a warning that comes again and again is said at doubling intervals."""
        key = line.split(":", 1)[-1].strip()[:24]
        self.said[key] = count = self.said.get(key, 0) + 1
        if count & (count - 1) == 0:
            self.show(lambda: self.print(line))

    def print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def show(self, action: Callable[[], None]) -> None:
        """Print, unless the reader has gone away (a closed pipe or terminal): no reason to stop training."""
        if self.quiet:
            return
        try:
            action()
        except OSError:
            self.quiet, nowhere = True, os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(nowhere, stream.fileno())

    def log(self, what: str, *words: Any) -> None:
        """Pass on to the loggers; one that fails (a full disk, say) is left out from then on."""
        for logger in tuple(self.loggers):
            try:
                getattr(logger, what)(*words)
            except Exception as error:  # whatever its reason, training goes on
                self.loggers.remove(logger)
                self.say(f"warning: {type(logger).__name__} failed and is left out from now on: {error}")


def drop_output() -> None:
    """Whoever read the output has gone away."""
    raise BrokenPipeError


class TensorBoard:
    """Event files in the run folder, where the extra is installed.

    ``pictures(model, batch)`` returns images and their reconstructions, (2, count, 1, height, width) in [0, 1]; without
    it there are numbers alone.
    """

    def __init__(self, folder: Path, pictures: Callable[[Any, Any], Tensor] | None = None) -> None:
        self.folder, self.pictures = folder, pictures
        self.writer: Any = None

    def start(self, step: int) -> None:
        """Begin a file; what an earlier one holds beyond this step will be taken again and is not shown."""
        from torch.utils.tensorboard import SummaryWriter

        make_folder(self.folder / "tensorboard", self.folder)  # UnsafeFile if it is a link
        self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1)

    def scalars(self, group: str, line: dict[str, Any]) -> None:
        for name, value in select_numbers(line).items():
            self.writer.add_scalar(f"{group}/{name}", value, line["step"])

    def images(self, step: int, model: Any, batch: Any) -> None:
        if self.pictures is None:
            return
        # eval mode and a random state of their own: looking at pictures must not change the training
        with in_eval_mode(model), torch.random.fork_rng(devices=[]):
            pairs = self.pictures(model, batch)
        grid = pairs.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # two rows of images, (height, width, 1)
        self.writer.add_image("reconstructions", grid, step, dataformats="HWC")

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Wandb:
    """Weights & Biases, opt-in; offline unless WANDB_MODE says otherwise, so nothing goes over the network unasked."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.run: Any = None

    def start(self, step: int) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        make_folder(self.folder / "wandb", self.folder)
        self.run = wandb.init(
            project="bsvi",
            dir=str(self.folder),
            config=self.config,
            name=self.folder.name,
            id=self.config["id"],
            resume="allow",
        )

    def scalars(self, group: str, line: dict[str, Any]) -> None:
        self.run.log({f"{group}/{name}": value for name, value in select_numbers(line).items()}, step=line["step"])

    def images(self, step: int, model: Any, batch: Any) -> None:
        pass

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()


def select_numbers(line: dict[str, Any]) -> dict[str, float]:
    """What of a line of metrics can be drawn as a curve."""
    wanted = (int, float)
    return {k: v for k, v in line.items() if k != "step" and isinstance(v, wanted) and not isinstance(v, bool)}
