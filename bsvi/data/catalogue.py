"""The one entry point, `load`, and what `bsvi data list | fetch | check` show."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsvi.data.contact_sheet import write_contact_sheet
from bsvi.data.dataset import Dataset
from bsvi.data.download import Unavailable, data_folder, find, obtain
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile, file_hash, read_record, write_record
from bsvi.data.own_images import list_own_files, load_own_images
from bsvi.system.files import printable
from bsvi.tables.data_sets import DATA_SETS, Source


def load(
    name: str | Path,
    data_dir: Path | str | None = None,
    *,
    extra: bool = True,
    download: bool = True,
    progress: bool = True,
    sha256: str | None = None,
    **options: Any,
) -> Dataset:
    """A data set by its name, or your own images.

    Args:
        name: of a data set, such as digits, omniglot, svhn, fashion-mnist or mnist; or a path.
        data_dir: where the files are; else $BSVI_DATA_DIR, else the cache folder.
        extra: with SVHN's extra images.
        download: get files that are missing.
        progress: show how far a download is, on a terminal.
        sha256: the data hash that the result must have, such as the one noted in an earlier result.
        options: of the loader: ``validation``, for MNIST and your own images ``binarise``, for these also ``size``, ``test``.

    Returns:
        A ``Dataset`` with its three splits.

    Example:
        >>> load("digits").train.images.shape
        torch.Size([1197, 1, 8, 8])
    """
    name = str(name)
    dataset = _load(name, [] if name not in DATA_SETS else _files(name, data_dir, extra, download, progress), options)
    if sha256 is not None and dataset.sha256 != sha256:
        raise ValueError(
            f"{name}: expected data with the hash {sha256}, found {dataset.sha256}; these are other images"
        )
    return dataset


def _load(name: str, files: list[Path], options: dict[str, Any]) -> Dataset:
    path, row = Path(name), DATA_SETS.get(name)
    if row is None and not (name and (path.is_dir() or path.is_file())):  # a pipe would make us wait
        raise ValueError(
            f"no data set {name!r}; it must be one of {', '.join(DATA_SETS)}, or the path of your own images"
        )
    known = ("validation", "test", "size", "binarise") if row is None else row.options
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{name}: unknown option {unknown[0]}; it can have: {', '.join(sorted(known)) or 'none'}")
    dataset: Dataset = load_own_images(path, **options) if row is None else row.load(*files, **options)
    return dataset


def _files(name: str, data_dir: Path | str | None, extra: bool, download: bool, progress: bool) -> list[Path]:
    paths = []
    for source in DATA_SETS[name].sources:
        if source.extra and not extra:
            continue
        path = find(name, source.file, data_dir)
        if path is not None and source.content_md5 and path.parent.name != name:
            _check_whose(name, path)
        if path is None and not download:
            folder, address = data_folder(data_dir) / name, source.mirrors[0] + source.file
            raise Unavailable(f"{source.file} is not there; get it from {address} and put it into {folder}")
        try:
            paths.append(path or obtain(name, source, data_dir, progress=progress))
        except Unavailable as error:
            if source.extra:
                raise Unavailable(
                    f"{error}, or leave the extra images out (--no-extra, in bsvi train --data.no-extra)"
                ) from None
            raise
    return paths


def _check_whose(name: str, path: Path) -> None:
    """BadFile where a file with a name that several data sets use holds the images of another one."""
    found = _content_md5(path)
    for other, row in DATA_SETS.items():
        if other != name and found in [source.content_md5 for source in row.sources if source.content_md5]:
            raise BadFile(path, f"images of {name}", f"those of {other}; put each set into a folder of its name")


@dataclass(frozen=True)
class DatasetEntry:
    """One line of `bsvi data list`."""

    name: str
    about: str
    licence: str
    here: str  # "yes", "no", or the files that are missing


def list_datasets(data_dir: Path | str | None = None) -> list[DatasetEntry]:
    """What data sets there are, and which are here.

    Args:
        data_dir: as in ``load``.

    Returns:
        An entry for each, in the order of their table.

    Example:
        >>> list_datasets()[0].name, list_datasets()[0].here
        ('digits', 'yes')
    """
    rows = []
    for name, row in DATA_SETS.items():
        missing = [source.file for source in row.sources if find(name, source.file, data_dir) is None]
        here = "yes" if not missing else "no" if len(missing) == len(row.sources) else f"without {', '.join(missing)}"
        rows.append(DatasetEntry(name, row.about, row.licence, here))
    return rows


def fetch(name: str, data_dir: Path | str | None = None, *, extra: bool = True, progress: bool = True) -> list[Path]:
    """The files of a data set, after downloading those that are missing.

    Args:
        name: of a public data set.
        data_dir: as in ``load``; so is extra.
        progress: show how far a download is, on a terminal.

    Returns:
        Their paths; none for the digits, which are part of the package.

    Example:
        >>> fetch("digits")
        []
    """
    if name not in DATA_SETS:
        raise ValueError(f"no data set {name!r} to fetch; there are {', '.join(DATA_SETS)}")
    return _files(name, data_dir, extra, True, progress)


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
    files = _files(name, data_dir, extra, False, False) if named else list_own_files(Path(name))
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
    elif source is not None and source.content_md5 and _content_md5(path) == source.content_md5:
        known_as.append("the public file's images")
    elif source is not None:
        known_as.append("not the public file")
    folder = top if top.is_dir() and path.is_relative_to(top) else path.parent
    known_as.append(
        "hash recorded" if path.relative_to(folder).as_posix() in read_record(folder) else "hash not recorded"
    )
    return FileReport(path, path.stat().st_size, file_hash(path), ", ".join(known_as))


def _content_md5(path: Path) -> str:
    images = read_idx_images(path)
    head = bytes([0, 0, 8, 3]) + b"".join(side.to_bytes(4, "big") for side in images.shape)
    return hashlib.md5(head + images.tobytes()).hexdigest()
