"""What a person types and sees: words that are checked with one line, and the terminal on which displays are drawn."""

import argparse
from typing import Any, NoReturn


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
