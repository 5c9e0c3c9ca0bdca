"""A table as data: cells that hold what a reader sees and the numbers behind it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bsvi.report.intervals import Interval

MISSING = "–"


@dataclass(frozen=True)
class Cell:
    """What a reader sees, and the numbers behind it by name ('' for the one that sorts the column)."""

    text: str = MISSING
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    bold: bool = False
    mark: str = ""  # a word for the page's style: a verdict, a state
    detail: str = ""  # a second, smaller line


@dataclass(frozen=True)
class Column:
    name: str
    group: str = ""  # columns side by side with the same group share a heading
    numeric: bool = True


@dataclass(frozen=True)
class ReportTable:
    """`name` is the file's; notes stand below the table."""

    name: str
    title: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)
    kind: str = ""  # a word for the page's style


def format_number(value: float, digits: int = 2, sign: bool = False) -> str:
    """A number for a reader, with a true minus; never '−0.00'.

    >>> format_number(-1.234), format_number(-0.001), format_number(0.5, sign=True)
    ('−1.23', '0.00', '+0.50')
    """
    if not math.isfinite(value):
        return MISSING
    rounded = round(value, digits) + 0.0
    return f"{rounded:{'+' if sign and rounded else ''}.{digits}f}".replace("-", "−")


def make_mean_cell(values: list[float], bold: bool = False, digits: int = 2) -> Cell:
    """Mean ± standard deviation over seeds; one seed has no deviation, none at all has no number."""
    if not values:
        return Cell()
    mean = math.fsum(values) / len(values)
    numbers, text = {"": mean}, format_number(mean, digits)
    if len(values) > 1:
        numbers["sd"] = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        text += f" ± {format_number(numbers['sd'], digits)}"
    return Cell(text, numbers, bold)


def make_difference_cell(interval: Interval | None, ratio: bool = False, digits: int = 2, mark: str = "") -> Cell:
    """'+0.67 [0.58, 0.76]', or a ratio where the difference is one of logarithms."""
    if interval is None:
        return Cell(mark=mark)
    shown = [math.exp(v) if ratio else v for v in (interval.mean, interval.low, interval.high)]
    numbers = dict(zip(("", "low", "high"), shown, strict=True))
    text = format_number(shown[0], digits, sign=not ratio)
    if math.isfinite(interval.low):
        text += f" [{format_number(shown[1], digits, not ratio)}, {format_number(shown[2], digits, not ratio)}]"
    return Cell(text, {name: value for name, value in numbers.items() if math.isfinite(value)}, mark=mark)
