"""The published runs of one experiment in one file, results/NAME/runs.tar.xz: run folders, as ``tar -xf`` gives them.

The same runs give the same bytes: names are sorted, and no time, owner or mode of a machine is kept. What is read may be
anybody's: sizes have limits, and only files that a published run has, by name, are unpacked.
"""

import contextlib
import lzma
import re
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from bsvi.report.experiments import ExperimentRuns, group_runs
from bsvi.report.runs import read_runs
from bsvi.system.files import printable, read_bytes, write_atomically
from bsvi.system.reading import Damaged

NAME = "runs.tar.xz"
PACKED = 1 << 24  # bytes of the file
LIMIT = 1 << 28  # bytes of all that is in it
MEMORY = 1 << 26  # bytes that unpacking itself may take
_FILE = re.compile(
    r"\w[\w.+-]*/(((config|result|scores|gap)\.json)|metrics\.jsonl|log\.txt|scores-\w+\.npz|samples/latents\.png)",
    re.A,
)


def pack(runs: Path, path: Path) -> None:
    """Write the files of the run folders in ``runs`` to ``path``; those of one name lie together, as they are alike."""
    files = [file for file in runs.rglob("*") if file.is_file()]
    named = {file.relative_to(runs).as_posix(): file for file in files}
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(named, key=lambda name: (name.partition("/")[2], name)):
            if not _FILE.fullmatch(name):
                raise ValueError(
                    f"{printable(named[name])} is no file of a published run; benchmarks/publish.py makes those"
                )
            data = read_bytes(named[name], LIMIT)
            member = tarfile.TarInfo(name)  # time 0, owner 0, mode 644
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    write_atomically(path, lzma.compress(packed.getvalue(), preset=6 | lzma.PRESET_EXTREME))


def unpack(path: Path, folder: Path) -> None:
    """Write the run folders of an archive into ``folder``; Damaged or an OSError where it cannot be read."""
    try:
        for name, data in _members(read_bytes(path, PACKED)):
            write_atomically(folder / name, data, within=folder)
    except (ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise Damaged(f"{printable(path)} cannot be unpacked ({printable(error, 200)})") from None


def _members(packed: bytes) -> Iterator[tuple[str, bytes]]:
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    data = decompressor.decompress(packed, max_length=LIMIT)
    if not decompressor.eof:
        raise ValueError(f"it is cut off, or holds more than {LIMIT:,} bytes")
    with tarfile.open(fileobj=BytesIO(data), mode="r:") as tar:
        for member in tar:
            if member.type != tarfile.REGTYPE or member.issparse() or not _FILE.fullmatch(member.name):
                raise ValueError(f"{printable(member.name, 80)} is no file of a published run")
            file = tar.extractfile(member)
            yield member.name, file.read() if file else b""


@contextlib.contextmanager
def open_archive(published: Path) -> Iterator[Path]:
    """The folder ``runs`` with the run folders of results/NAME, there as long as the block lasts."""
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "runs"
        unpack(published / NAME, runs)
        yield runs


def read_experiments(published: Path) -> list[ExperimentRuns]:
    """The experiments of results/NAME with their scores; none where nothing is published."""
    if not (published / NAME).exists():
        return []
    with open_archive(published) as runs:
        return group_runs(read_runs([runs])[0])
