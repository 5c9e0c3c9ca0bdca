"""check(): what is known of a data set that is here, after reading all of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsvi.data.catalogue import content_md5, find_files, load
from bsvi.data.contact_sheet import write_contact_sheet
from bsvi.data.download import find
from bsvi.data.integrity import file_hash, read_record, write_record
from bsvi.data.own_images import list_own_files
from bsvi.system.files import printable
from bsvi.tables.data_sets import DATA_SETS, Source


@dataclass(frozen=True)
class FileReport:
    """One file of a data set, and what is known about it."""

    path: Path
    nbytes: int
    sha256: str
    known_as: str


@dataclass(frozen=True)
class SplitReport:
    """Count and range of one split, grey values before binarisation."""

    name: str
    count: int
    low: float
    high: float
    mean: float


@dataclass(frozen=True)
class DataReport:
    """What `bsvi data check` shows; `str()` of it is the text."""

    name: str
    shape: tuple[int, int, int]
    likelihood: str
    sha256: str
    splits: tuple[SplitReport, ...]
    files: tuple[FileReport, ...]
    contact_sheet: Path | None

    def __str__(self) -> str:
        lines = [f"{printable(self.name)}: images of {self.shape[1]}x{self.shape[2]}, {self.likelihood} likelihood"]
        for split in self.splits:
            range_ = f"grey {split.low:.3f} to {split.high:.3f}, mean {split.mean:.4f}"
            lines.append(f"  {split.name:5}  {split.count:>9,} images  {range_}")
        for file in self.files[:10]:
            lines.append(f"  {printable(file.path)}  {file.nbytes:,} bytes  sha256 {file.sha256}  {file.known_as}")
        if len(self.files) > 10:
            lines.append(f"  ... and {len(self.files) - 10:,} more files")
        lines.append(f"  data hash {self.sha256}")
        if self.contact_sheet is not None:
            lines.append(f"  contact sheet {self.contact_sheet}")
        return "\n".join(lines)


def check(
    name: str | Path,
    data_dir: Path | str | None = None,
    *,
    extra: bool = True,
    contact_sheet: Path | str | None = None,
    record_hashes: bool = False,
    **options: Any,
) -> DataReport:
    """Counts, ranges and hashes of a data set that is here, after reading all of it; nothing is downloaded.

    Args:
        name: as in ``load``; so are data_dir, extra and the options.
        contact_sheet: where to write a PNG of its images, never among them.
        record_hashes: write the files' SHA-256 beside them, so that later damage is noticed in any format.

    Returns:
        A ``DataReport``, which prints itself.

    Example:
        >>> [(split.name, split.count) for split in check("digits").splits]
        [('train', 1197), ('valid', 200), ('test', 400)]
    """
    name = str(name)
    if contact_sheet is not None:
        _check_beside(Path(contact_sheet), name, data_dir)
    extra = extra and all(find(name, source.file, data_dir) for source in _sources(name) if source.extra)
    dataset = load(name, data_dir, extra=extra, download=False, **options)
    named = name in DATA_SETS
    files = find_files(name, data_dir, extra, False, False) if named else list_own_files(Path(name))
    if record_hashes:
        folders = {path.parent for path in files} if named or not Path(name).is_dir() else {Path(name)}
        for folder in folders:
            write_record([path for path in files if path.is_relative_to(folder)], folder)
    splits = []
    for split in dataset.splits:
        low, high = (float(end) / split.levels for end in split.images.aminmax())
        splits.append(
            SplitReport(split.name, len(split), low, high, float(split.images.double().mean()) / split.levels)
        )
    sheet = write_contact_sheet(dataset, Path(contact_sheet)) if contact_sheet is not None else None
    reports = tuple(_file_report(name, path, Path(name)) for path in files)
    return DataReport(dataset.name, dataset.shape, dataset.likelihood, dataset.sha256, tuple(splits), reports, sheet)


def _sources(name: str) -> tuple[Source, ...]:
    return DATA_SETS[name].sources if name in DATA_SETS else ()


def _check_beside(sheet: Path, name: str, data_dir: Path | str | None) -> None:
    """Raise ValueError for a contact sheet that would become one of the images, or take the place of a file of data."""
    own = Path(name)
    sources = [find(name, source.file, data_dir) for source in _sources(name)]
    files = {path.resolve() for path in [*sources, own] if path is not None and path.exists()}
    inside = name not in DATA_SETS and own.is_dir() and sheet.resolve().is_relative_to(own.resolve())
    if inside or sheet.resolve() in files:
        raise ValueError(f"the contact sheet {sheet} would lie in the data themselves; name a file elsewhere")


def _file_report(name: str, path: Path, top: Path) -> FileReport:
    source = next((source for source in _sources(name) if source.file == path.name), None)
    known_as = []
    if source is not None and file_hash(path, source.algorithm) == source.digest:
        known_as.append("the public file")
    elif source is not None and source.content_md5 and content_md5(path) == source.content_md5:
        known_as.append("the public file's images")
    elif source is not None:
        known_as.append("not the public file")
    folder = top if top.is_dir() and path.is_relative_to(top) else path.parent
    known_as.append(
        "hash recorded" if path.relative_to(folder).as_posix() in read_record(folder) else "hash not recorded"
    )
    return FileReport(path, path.stat().st_size, file_hash(path), ", ".join(known_as))
