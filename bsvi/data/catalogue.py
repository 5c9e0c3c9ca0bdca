"""The one entry point, `load`, and what `bsvi data list | fetch | check` show."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsvi.data import fashion_mnist
from bsvi.data.contact_sheet import write_contact_sheet
from bsvi.data.dataset import Dataset
from bsvi.data.digits import load_digits
from bsvi.data.download import SOURCES, Unavailable, data_folder, find, obtain
from bsvi.data.fashion_mnist import load_fashion_mnist
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import file_hash, read_record, write_record
from bsvi.data.omniglot import load_omniglot
from bsvi.data.own_images import list_own_files, load_own_images
from bsvi.data.svhn import load_svhn
from bsvi.system.files import printable

_ABOUT = {
    "digits": ("8x8, 1,197 + 200 + 400 images, shipped with bsvi", "CC BY 4.0"),
    "omniglot": ("28x28, 24,345 + 8,070 images, binarised", "MIT"),
    "svhn": ("32x32, 73,257 (+ 531,131 extra) + 26,032 images, grey", "non-commercial research use"),
    "fashion-mnist": ("28x28, 60,000 + 10,000 images, grey", "MIT"),
}


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
    """Return a data set: digits, omniglot, svhn, fashion-mnist, or your own images at the path `name`.

    Files are looked for in `data_dir` (else $BSVI_DATA_DIR, else the cache folder) and downloaded if they are missing
    and `download` allows it; `extra=False` leaves out SVHN's extra part. `sha256` is the data hash that the result
    must have, such as the one noted in an earlier result. Further options go to the loader: `validation`, and for your
    own images `size`, `binarise`, `test`.

    >>> load("digits").train.images.shape
    torch.Size([1197, 1, 8, 8])
    """
    name = str(name)
    dataset = _load(name, [] if name not in SOURCES else _files(name, data_dir, extra, download, progress), options)
    if sha256 is not None and dataset.sha256 != sha256:
        raise ValueError(
            f"{name}: expected data with the hash {sha256}, found {dataset.sha256}; these are other images"
        )
    return dataset


def _load(name: str, files: list[Path], options: dict[str, Any]) -> Dataset:
    loaders = {"digits": load_digits, "omniglot": load_omniglot, "svhn": load_svhn, "fashion-mnist": load_fashion_mnist}
    path = Path(name)
    if name not in loaders and not (name and (path.is_dir() or path.is_file())):  # a pipe would make us wait
        raise ValueError(
            f"no data set {name!r}; it must be one of {', '.join(loaders)}, or the path of your own images"
        )
    known = {"validation"} if name in loaders else {"validation", "test", "size", "binarise"}
    known -= {"validation"} if name == "digits" else set()
    if unknown := sorted(set(options) - known):
        raise ValueError(f"{name}: unknown option {unknown[0]}; it can have: {', '.join(sorted(known)) or 'none'}")
    return loaders[name](*files, **options) if name in loaders else load_own_images(path, **options)  # type: ignore[operator]


def _files(name: str, data_dir: Path | str | None, extra: bool, download: bool, progress: bool) -> list[Path]:
    paths = []
    for source in SOURCES[name]:
        if source.file == "extra_32x32.mat" and not extra:
            continue
        path = find(name, source.file, data_dir)
        if path is None and not download:
            folder, address = data_folder(data_dir) / name, source.mirrors[0] + source.file
            raise Unavailable(f"{source.file} is not there; get it from {address} and put it into {folder}")
        try:
            paths.append(path or obtain(name, source, data_dir, progress=progress))
        except Unavailable as error:
            if source.file == "extra_32x32.mat":
                raise Unavailable(
                    f"{error}, or leave the extra images out (--no-extra, in bsvi train --data.no-extra)"
                ) from None
            raise
    return paths


@dataclass(frozen=True)
class DatasetEntry:
    """One line of `bsvi data list`."""

    name: str
    about: str
    licence: str
    here: str  # "yes", "no", or the files that are missing


def list_datasets(data_dir: Path | str | None = None) -> list[DatasetEntry]:
    """Return what data sets there are and which are here.

    >>> list_datasets()[0].name, list_datasets()[0].here
    ('digits', 'yes')
    """
    rows = []
    for name, sources in SOURCES.items():
        missing = [source.file for source in sources if find(name, source.file, data_dir) is None]
        here = "yes" if not missing else "no" if len(missing) == len(sources) else f"without {', '.join(missing)}"
        rows.append(DatasetEntry(name, *_ABOUT[name], here))
    return rows


def fetch(name: str, data_dir: Path | str | None = None, *, extra: bool = True, progress: bool = True) -> list[Path]:
    """Return the paths of a data set's files after downloading those that are missing."""
    if name not in SOURCES:
        raise ValueError(f"no data set {name!r} to fetch; there are {', '.join(SOURCES)}")
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
    """Return counts, ranges and hashes of a data set that is here, after reading all of it; nothing is downloaded.

    `contact_sheet` is where to write a PNG of its images, never among them; `record_hashes` writes the files' SHA-256
    beside them, so that later damage is noticed in any format.
    """
    name = str(name)
    if contact_sheet is not None:
        _check_beside(Path(contact_sheet), name, data_dir)
    extra = extra and (name != "svhn" or find("svhn", "extra_32x32.mat", data_dir) is not None)
    dataset = load(name, data_dir, extra=extra, download=False, **options)
    named = name in SOURCES
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


def _check_beside(sheet: Path, name: str, data_dir: Path | str | None) -> None:
    """Raise ValueError for a contact sheet that would become one of the images, or take the place of a file of data."""
    own = Path(name)
    sources = [find(name, source.file, data_dir) for source in SOURCES.get(name, ())]
    files = {path.resolve() for path in [*sources, own] if path is not None and path.exists()}
    inside = name not in SOURCES and own.is_dir() and sheet.resolve().is_relative_to(own.resolve())
    if inside or sheet.resolve() in files:
        raise ValueError(f"the contact sheet {sheet} would lie in the data themselves; name a file elsewhere")


def _file_report(name: str, path: Path, top: Path) -> FileReport:
    source = next((source for source in SOURCES.get(name, ()) if source.file == path.name), None)
    known_as = []
    if source is not None and file_hash(path, source.algorithm) == source.digest:
        known_as.append("the public file")
    elif name == "fashion-mnist" and _content_md5(path) in fashion_mnist.CONTENT_MD5:
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
