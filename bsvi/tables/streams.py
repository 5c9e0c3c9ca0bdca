"""The streams of an example's noise: every purpose has a number of its own, so that no two see the same draws.

What is judged must never have seen the draws that judge it. The numbers decide every published figure: they stay as they are.
A new purpose takes a new number.
"""

from bsvi.tables.table import Table

STREAMS: Table[int] = Table(
    "noise stream",
    {
        "evaluate-walk": 0,
        "evaluate-iwae": 1,
        "evaluate-last": 2,
        "evaluate-trained": 3,
        "gap-climb": 10,
        "gap-again": 11,
        "gap-choose": 12,
        "gap-widen": 13,
        "gap-judge": 14,
        "ais-start": 20,
        "ais-move": 21,
        "ais-pilot-start": 22,
        "ais-pilot-move": 23,
        "refine-anneal-moment": 30,
        "refine-anneal-climb": 31,
        "refine-anneal-round": 32,
        "refine-anneal-choose": 33,
        "refine-anneal-pilot": 34,
        "refine-anneal-pilot-move": 35,
        "refine-anneal-start": 36,
        "refine-anneal-move": 37,
        "refine-anneal-exact": 38,
    },
)


def find_streams(purpose: str, *names: str) -> tuple[int, ...]:
    """The numbers of several streams of one purpose.

    >>> find_streams("ais", "start", "move")
    (20, 21)
    """
    return tuple(STREAMS.find(f"{purpose}-{name}") for name in names)
