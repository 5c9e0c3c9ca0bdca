"""The page's list of warnings, by kind: what to read before trusting a number."""

import html

from bsvi.report.kinds import WarningKind, group_by_kind
from bsvi.report.records import ReportWarning


def list_warnings(anchor: str, warnings: list[ReportWarning]) -> str:
    """The warnings as HTML, open where they are few; nothing where there are none."""
    if not warnings:
        return ""
    kinds = group_by_kind(warnings)
    title = _count(len(warnings), "warning")
    title += f" of {_count(len(kinds), 'kind')}" if len(kinds) < len(warnings) else ""
    return (
        f'<details class="warnings" id="{anchor}-warnings"{" open" * (len(kinds) <= 8)}><summary>{title}: read before '
        f"trusting a number</summary><ul>{''.join(map(_kind, kinds))}</ul></details>"
    )


def _kind(kind: WarningKind) -> str:
    if len(kind.warnings) == 1:
        return f"<li>{_show_warning(kind.warnings[0].where, kind.warnings[0].text)}</li>"
    members = [(warned.where, "" if warned.text == kind.text else warned.text) for warned in kind.warnings]
    items = "".join(f"<li>{_show_warning(where, text)}</li>" for where, text in members)
    places = len({warned.where for warned in kind.warnings})
    count = _count(places, "run") if places > 1 else f"{len(kind.warnings)} times"
    return (
        f"<li><b>{count}</b>: {html.escape(kind.text)}<details><summary>Which</summary><ul>{items}</ul></details></li>"
    )


def _show_warning(where: str, text: str) -> str:
    place = f"<code>{html.escape(where)}</code>" if where else ""
    return ": ".join(filter(None, [place, html.escape(text)]))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
