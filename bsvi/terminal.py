"""The terminal on which displays are drawn."""

from typing import Any


def open_console() -> Any:
    """Standard error as a rich console that never hides the cursor.

    However a program ends, by Ctrl-C or by a signal that nobody can catch, it leaves a terminal in which one can type.
    """
    from rich.console import Console

    class Visible(Console):
        def show_cursor(self, show: bool = True) -> bool:
            return False

    return Visible(stderr=True)
