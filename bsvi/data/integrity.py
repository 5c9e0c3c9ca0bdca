"""Is this file what it was? Errors for bad files, hashes, and the `SHA256SUMS` record beside the data.

gzip, npz, png and compressed .mat carry a checksum, and reading them to the end runs it. A raw .npy, raw IDX, .jpg,
.bmp or uncompressed .mat carries none: a flipped bit there is only another picture. For these the guard is a line in a
file `SHA256SUMS` in the same folder (the format of `sha256sum`): wherever such a line exists it is enforced, for every
format. `fetch` writes one for all that it downloads, `check(..., record=True)` for files of your own; loading never
writes. Where neither a checksum nor a line exists, loading says so in one log line.
"""

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from bsvi.system.files import printable, write_atomically

log = logging.getLogger("bsvi.data")

SUMS = "SHA256SUMS"
# No array larger than this is ever allocated: SVHN with its extra part, the largest set known here, needs 1.7 GB.
MAX_BYTES = 4 << 30
# Deflate cannot expand by more than this, so a declared size beyond it is a lie that costs no memory to find out.
MAX_EXPANSION = 1032


class BadFile(ValueError):
    """A data file that is not what it should be; one line with the file, what was expected and what was found."""

    def __init__(self, path: Path | str, expected: str, found: str) -> None:
        super().__init__(f"{printable(path)}: expected {expected}, found {printable(found)}")


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """Return the hex digest of a file's bytes; `git-blob` is the SHA-1 by which git names the same bytes."""
    digest = hashlib.new("sha1" if algorithm == "git-blob" else algorithm)
    if algorithm == "git-blob":
        digest.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_record(folder: Path) -> dict[str, str]:
    """Return {file name: sha256} from the folder's record; empty where there is none."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    try:
        lines = path.read_text("utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError:
        raise BadFile(path, "lines of 'sha256  file name'", "bytes that are not text") from None
    for line in filter(None, lines):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not set(digest) <= set("0123456789abcdef") or not name:
            raise BadFile(path, "lines of 'sha256  file name'", repr(line[:80]))
        sums[name] = digest
    return sums


def write_record(paths: Iterable[Path], folder: Path) -> None:
    """Write or renew the lines of these files, which lie in or below the folder, in its record."""
    sums = read_record(folder)
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if any(c in "\r\n" or "\ud800" <= c <= "\udfff" for c in name):
            raise BadFile(path, "a name of one line of text, as SHA256SUMS has", "another; rename the file")
        sums[name] = file_hash(path)
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    write_atomically(folder / SUMS, text.encode())


def verify(path: Path, own_checksum: bool, folder: Path | None = None, sums: dict[str, str] | None = None) -> bool:
    """Return whether anything guards this file: its format's checksum, or a recorded hash, which must match."""
    folder = path.parent if folder is None else folder
    sums = read_record(folder) if sums is None else sums
    expected = sums.get(path.relative_to(folder).as_posix())
    if expected is None:
        return own_checksum
    if (found := file_hash(path)) != expected:
        raise BadFile(
            path,
            f"sha256 {expected} as recorded in {folder / SUMS}",
            f"{found}; restore the file, or delete that line if the change is meant",
        )
    return True


def warn_of_unguarded(path: Path, count: int = 1) -> None:
    """Log that a change of this file could not be noticed."""
    what = "it has" if count == 1 else f"{count} files in it have"
    advice = "so damage would not be noticed; record one: bsvi data check"
    log.warning("%s: %s no checksum, %s %s --record", path, what, advice, path)


def check_size(path: Path, what: str, nbytes: int, stored: int | None = None) -> None:
    """Refuse a declared size that the stored bytes cannot hold, or that is beyond all reason, before allocating it."""
    if nbytes > MAX_BYTES:
        raise BadFile(path, f"at most {MAX_BYTES:,} bytes in {what}", f"{nbytes:,} declared")
    if stored is not None and nbytes > MAX_EXPANSION * stored + 1024:
        raise BadFile(path, f"{what} of {nbytes:,} bytes", f"{stored:,} stored bytes, which cannot hold as many")
