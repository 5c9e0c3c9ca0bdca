"""The one entry point, `load`, and what `bsvi data list` and `fetch` show."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsvi.data.dataset import Dataset
from bsvi.data.download import Unavailable, data_folder, find, obtain
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile
from bsvi.data.own_images import load_own_images
from bsvi.tables.data_sets import DATA_SETS


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
    dataset = _load(
        name, [] if name not in DATA_SETS else find_files(name, data_dir, extra, download, progress), options
    )
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


def find_files(name: str, data_dir: Path | str | None, extra: bool, download: bool, progress: bool) -> list[Path]:
    """The files of a data set; those that are missing are downloaded, or refused by their names."""
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
    found = content_md5(path)
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
    return find_files(name, data_dir, extra, True, progress)


def content_md5(path: Path) -> str:
    """The md5 of an IDX file's content, whatever gzip made of it."""
    images = read_idx_images(path)
    head = bytes([0, 0, 8, 3]) + b"".join(side.to_bytes(4, "big") for side in images.shape)
    return hashlib.md5(head + images.tobytes()).hexdigest()
