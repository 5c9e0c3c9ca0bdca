"""A word that nobody knows, and the nearest one that somebody does."""

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """``did you mean 'apple'? `` with a space behind it, to stand before more; empty where no known word is near.

    >>> suggest("appel", ["apple", "pear"]), suggest("x", ["apple", "pear"])
    ("did you mean 'apple'? ", '')
    """
    close = difflib.get_close_matches(word[:80], list(known), n=1)
    return f"did you mean {close[0]!r}? " if close else ""
