"""Warnings of many runs put together by kind, so that a reader sees four sentences and not four for every run."""

import re
from dataclasses import dataclass

from bsvi.report.records import ReportWarning

_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w])")  # not the 500 of IWAE-500, which is a name


@dataclass(frozen=True)
class WarningKind:
    """One kind of warning in words that are true of all of them, and the warnings themselves."""

    text: str
    warnings: list[ReportWarning]


def group_by_kind(warnings: list[ReportWarning]) -> list[WarningKind]:
    """The kinds of warnings, the most frequent first; those that differ in numbers alone are of one kind.

    >>> warnings = [ReportWarning("a", "high for 30% of 9 images"), ReportWarning("b", "high for 8% of 9 images")]
    >>> [kind.text for kind in group_by_kind(warnings)]
    ['high for 8 to 30% of 9 images']
    """
    kinds: dict[str, list[ReportWarning]] = {}
    for warned in warnings:
        kinds.setdefault(warned.kind or _NUMBER.sub("\0", warned.text), []).append(warned)
    ordered = sorted(kinds.values(), key=len, reverse=True)
    return [
        WarningKind(members[0].kind or _merge_texts([warned.text for warned in members]), members)
        for members in ordered
    ]


def _merge_texts(texts: list[str]) -> str:
    """The text that all have in common, with the smallest and the largest where numbers differ."""
    between = _NUMBER.split(texts[0])
    spans = []
    for numbers in zip(*(_NUMBER.findall(text) for text in texts), strict=True):
        ordered = sorted(dict.fromkeys(numbers), key=float)
        spans.append(ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}")
    return "".join(part + span for part, span in zip(between, [*spans, ""], strict=True))
