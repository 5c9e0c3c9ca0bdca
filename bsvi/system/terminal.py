"""What a person types and sees: words that are checked with one line, and the terminal on which displays are drawn."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from bsvi.system.clock import Stopwatch


class Parser(argparse.ArgumentParser):
    """Flags of a verb; a mistake is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says what fits\n")


def open_console() -> Any:
    """Standard error as a rich console that never hides the cursor.

    However a program ends, by Ctrl-C or by a signal that nobody can catch, it leaves a terminal in which one can type.
    """
    from rich.console import Console

    class Visible(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Visible(stderr=True)


@contextmanager
def count_on_terminal(what: str) -> Iterator[Callable[[int], None] | None]:
    """A function that shows on standard error how many examples are done, and removes its line at the end; None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    watch = Stopwatch()

    def show(done: int) -> None:
        each = watch.seconds / max(1, done)
        sys.stderr.write(f"\r\x1b[K{what}: {done} examples, {each:.3g} s each")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
