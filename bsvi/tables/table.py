"""A table of rows by name: what there is of one concept, written once and read by everyone."""

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from bsvi.tables.words import suggest

Row = TypeVar("Row")


class Table(dict[str, Row]):
    """The rows of one concept by name. A new row is ``TABLE["name"] = row``, also from outside the package.

    >>> table = Table("fruit", {"apple": 1, "pear": 2})
    >>> table.find("appel")
    Traceback (most recent call last):
    ...
    ValueError: unknown fruit 'appel'; did you mean 'apple'? The fruits: apple, pear
    """

    def __init__(self, concept: str, rows: dict[str, Row]) -> None:
        super().__init__()
        self.concept = concept
        for name, row in rows.items():
            self[name] = row
        self.built_in = dict(self)

    def __setitem__(self, name: str, row: Row) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name):  # a flag, a folder and a CSS variable are made of it
            raise ValueError(
                f"the name of a {self.concept} has small letters, digits and hyphens, got {name!r}; choose such a name"
            )
        super().__setitem__(name, row)

    def find(self, name: Any) -> Row:
        """The row of this name, or ValueError with the nearest name and all of them."""
        if name in self:
            return self[name]
        hint = suggest(str(name), self)
        raise ValueError(f"unknown {self.concept} {name!r:.80}; {hint}The {self.concept}s: {', '.join(self)}")


def later(place: str) -> Callable[..., Any]:
    """A function that calls ``module:name``, and imports the module at its first call: a row then costs no import.

    >>> later("math:sqrt")(9.0)
    3.0
    """

    def call(*arguments: Any, **options: Any) -> Any:
        module, name = place.split(":")
        return getattr(import_module(module), name)(*arguments, **options)

    return call
