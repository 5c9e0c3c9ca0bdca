"""docs/reliability.md shows the counts that the slow tests wrote, all of them and no others."""

import json
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def table(counts):
    """The counts as the page has them."""
    rows = ["| fault and what must happen | count | |", "|---|---|---|"]
    for fault, entry in counts.items():
        details = [
            f"{name.replace('_', ' ')}: {shown(value)}" for name, value in entry.items() if name not in ("good", "of")
        ]
        rows.append(f"| {fault} | {entry['good']:,} of {entry['of']:,} | {'; '.join(details)} |")
    return "\n".join(rows)


def shown(value):
    return ", ".join(f"{name} {count}" for name, count in value.items()) if isinstance(value, dict) else str(value)


def test_the_page_shows_the_counts_of_the_tests():
    counts = json.loads((DOCS / "reliability.json").read_text())
    assert table(counts) in (DOCS / "reliability.md").read_text()
    assert all(entry["good"] == entry["of"] > 0 for entry in counts.values())


def test_the_counts_are_at_least_those_that_were_promised():
    counts = json.loads((DOCS / "reliability.json").read_text())
    total = {}
    for words, least in {
        "SIGKILL at random times": 200,
        "SIGKILL inside a save: newest": 500,
        "SIGTERM, SIGINT, SIGUSR1: resumed bitwise": 50,
        "truncated checkpoint: falls back": 200,
        "one flipped bit: detected": 1000,
        "disk full for a while": 50,
        "nan in data": 4,
        "second process": 50,
        "50 simultaneous starts: the others": 49,
        "hostile": 20,
        "spoilt run folders": 2000,
    }.items():
        total[words] = sum(entry["good"] for fault, entry in counts.items() if fault.startswith(words))
        assert total[words] >= least, words
