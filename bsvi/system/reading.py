"""JSON of a run folder, read with limits on bytes, depth and digits."""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from bsvi.system.files import printable, read_bytes

DEPTH = 32  # of JSON: ours has five levels
DIGITS = 20  # of a whole number: those of a seed below 2**64
SMALL = 4 << 20  # bytes of a JSON file that is one object: as Python objects it may be twenty times as many
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # matches an open end too: it never tries twice
_BRACKET = re.compile(rb"[][{}]")
_LONG = re.compile(rb"(?<![.\d])\d{%d}" % (DIGITS + 1))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Damaged(ValueError):
    """A file that does not hold what it should: one line that names it."""


def parse_json(text: bytes, nan: bool = False) -> Any:
    """The value of a JSON text, or ValueError with the reason; ``nan`` also takes Python's NaN and Infinity.

    >>> parse_json(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> parse_json(b"[" * 100 + b"]" * 100)
    Traceback (most recent call last):
    ...
    ValueError: nested more than 32 deep
    """
    outside, depth = _STRING.sub(b"", text), 0
    for bracket in _BRACKET.findall(outside):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH:
            raise ValueError(f"nested more than {DEPTH} deep")
    if _LONG.search(outside):
        raise ValueError(f"a whole number of more than {DIGITS} digits")
    try:
        value = json.loads(text.decode(), parse_constant=float if nan else _no_number)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError("not UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos}") from None
    return value


def read_json(path: Path, limit: int = SMALL, nan: bool = False) -> Any:
    """The value of a JSON file; Damaged or an OSError where it cannot be read."""
    try:
        return parse_json(read_bytes(path, limit), nan)
    except ValueError as error:
        raise Damaged(f"{printable(path)} is damaged ({error})") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
