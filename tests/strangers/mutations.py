"""Ways to spoil a file of a run folder. Checksums are made right again, so that what comes after them is reached."""

import json
import os
import shutil
import zlib

from hypothesis import strategies as st

NASTY = [
    None,
    True,
    -1,
    0,
    2**63,
    10**19,
    1e308,
    -1e308,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "a\n\x1b[2J\u202e",
    "../../etc",
    "NaN",
    [],
    {},
    [[[[[[]]]]]],
    [0] * 1000,
    {"a": {"b": {"c": 1}}},
]
RAW = [b"9" * 6000, b"[" * 100_000, b"\xff\xfe\0", b"1e999999", b'"\\ud800"', b"{" * 40 + b"}" * 40, b""]
KINDS = ["link", "dangling", "device", "pipe", "folder", "hard link", "huge", "gone", "outside folder"]


place = st.tuples(st.integers(0, 9), st.integers(0, 999), st.integers(0, 9999))  # a line, and a place in its JSON
file = st.integers(0, 999)
mutation = st.one_of(
    st.tuples(st.just("kind"), file, st.sampled_from(KINDS)),
    st.tuples(st.just("bytes"), file, st.floats(0, 1), st.binary(min_size=1, max_size=6)),
    st.tuples(st.just("cut"), file, st.floats(0, 1)),
    st.tuples(st.just("raw"), file, st.sampled_from(RAW)),
    *[st.tuples(st.just("value"), file, place, st.sampled_from(NASTY))] * 4,
    *[st.tuples(st.just("drop"), file, place)] * 2,
)


def spoil(folder, files, what):
    """Do one mutation to the file that its number names."""
    kind, number, *rest = what
    path = folder / files[number % len(files)]
    if kind == "kind":
        return replace(folder, path, rest[0])
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 24:
        return None
    data = path.read_bytes()
    if kind == "bytes":
        at = int(rest[0] * len(data))
        data = data[:at] + rest[1] + data[at + len(rest[1]) :]
    elif kind == "cut":
        data = data[: int(rest[0] * len(data))]
    elif kind == "raw":
        data = rest[0]
    else:
        data = changed(path.name, data, rest)
    return path.write_bytes(data)


def replace(folder, path, kind):
    """Put something that is no regular file of its own in place of a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if not path.parent.is_dir() or path.parent.is_symlink():
        return
    outside = folder.parent / "outside"
    if kind == "link":
        path.symlink_to(outside / "victim")
    elif kind == "dangling":
        path.symlink_to(outside / "new")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "hard link":
        path.hardlink_to(outside / "victim")
    elif kind == "outside folder":
        target = path if path.parent == folder else path.parent
        if target.is_dir():
            shutil.rmtree(target)
        target.symlink_to(outside)
    elif kind == "huge":
        with open(path, "wb") as file:
            file.truncate(1 << 40)


def changed(name, data, rest):
    """The same file with one value of its JSON replaced or dropped, and lengths and checksums as they should be."""
    (line, part, number), *value = rest
    try:
        if name.endswith(".json"):
            return json.dumps(edited(json.loads(data), number, value)).encode()
        if name.endswith(".jsonl"):
            signed = name != "metrics.jsonl"
            lines = [json.loads(text[9:] if signed else text) for text in data.splitlines()]
            lines[line % len(lines)] = edited(lines[line % len(lines)], number, value)
            texts = [json.dumps(each, separators=(",", ":")).encode() for each in lines]
            return b"".join((b"%08x " % zlib.crc32(text) if signed else b"") + text + b"\n" for text in texts)
        if name.endswith(".safetensors"):
            end = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:end])
            if part % 2:
                about = edited(json.loads(header["__metadata__"]["bsvi"]), number, value)
                header["__metadata__"]["bsvi"] = json.dumps(about)
            else:
                header = edited(header, number, value)
            text = json.dumps(header).encode()
            return len(text).to_bytes(8, "little") + text + data[end:]
    except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError, RecursionError):
        pass  # spoilt before in such a way that it cannot be spoilt like this
    return data


def edited(value, number, new):
    """A JSON value with the place that a number names replaced by another value, or dropped."""
    places = [*walk(value)]
    parent, key = places[number % len(places)]
    if new:
        parent[key] = new[0]
    else:
        del parent[key]
    return value


def walk(value):
    """Every place of a JSON value; of a list of numbers the first only."""
    inner = value.items() if isinstance(value, dict) else [*enumerate(value)][:1] if isinstance(value, list) else ()
    for key, below in inner:
        yield value, key
        yield from walk(below)
