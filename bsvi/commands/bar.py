"""Images done and time left: a live bar on a terminal, a line every ten seconds elsewhere."""

from collections.abc import Callable

from bsvi.system.clock import CLOCKS, format_duration
from bsvi.system.terminal import open_console

RECENT = 100  # batches by which the pace is judged
EVERY = 10.0  # seconds between lines where there is no terminal


class Bar:
    """``with Bar(title, images, quiet) as bar: bar.update(done)``."""

    def __init__(self, title: str, total: int, quiet: bool, clock: Callable[[], float] = CLOCKS["wall"]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = open_console()
        self.live, self.quiet, self.title, self.total = console.is_terminal, quiet, title, total
        columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        columns += [TextColumn("images"), TextColumn("{task.fields[left]}")]
        self.bar = Progress(*columns, console=console, disable=quiet or not self.live)
        self.task = self.bar.add_task(title, total=total, left="")
        self.clock, self.done = clock, 0
        self.last = self.said = clock()
        self.batches: list[tuple[float, int]] = []  # seconds and images of each

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def update(self, done: int) -> None:
        now = self.clock()
        if done == self.done:
            return  # processes are asked more often than they finish a batch
        self.batches = [*self.batches[-RECENT:], (now - self.last, done - self.done)]
        self.last, self.done = now, done
        left = self.left()
        self.bar.update(self.task, completed=done, left=left)
        if not self.live and not self.quiet and now - self.said >= EVERY:
            print(f"{self.title}: {done}/{self.total} images, {left}", flush=True)
            self.said = now

    def left(self) -> str:
        """The time left, at the pace of the batches so far; those that a store had already took no time and do not count."""
        longest = max(seconds for seconds, _ in self.batches)
        real = [(seconds, images) for seconds, images in self.batches if seconds > 0.05 * longest and images > 0]
        images = sum(images for _, images in real)
        if not images:
            return ""
        seconds = sum(seconds for seconds, _ in real) / images * (self.total - self.done)
        return f"about {format_duration(seconds)} left"
