"""The public files: where they are, what their published hashes are, and how one gets here exactly once and whole."""

import os
import tempfile
import time
from pathlib import Path

import pooch
import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from bsvi.data.integrity import BadFile, file_hash, log, write_record
from bsvi.tables.data_sets import Source

ENVIRONMENT = "BSVI_DATA_DIR"


class Unavailable(OSError):
    """A file that is neither here nor to be had; one line that says where to get it and where to put it."""


def data_folder(data_dir: Path | str | None = None) -> Path:
    """Return the folder of data: the argument, else $BSVI_DATA_DIR, else the user's cache folder.

    >>> str(data_folder("pictures"))
    'pictures'
    """
    return Path(data_dir or os.environ.get(ENVIRONMENT) or pooch.os_cache("bsvi"))


def find(name: str, file: str, data_dir: Path | str | None = None) -> Path | None:
    """Return where a data set's file is, in the subfolder of its name or in the folder itself; None if nowhere."""
    folder = data_folder(data_dir)
    plain = file.removesuffix(".gz")  # an unpacked copy serves as well
    places = [folder / name / file, folder / file, folder / name / plain, folder / plain]
    return next((path for path in places if path.is_file()), None)


def obtain(
    name: str,
    source: Source,
    data_dir: Path | str | None = None,
    *,
    progress: bool = True,
    attempts: int = 3,
    wait: float = 1.0,
    timeout: float = 30.0,
) -> Path:
    """Return the path of a data set's file: one that is here as it is, else one downloaded and hashed just now."""
    if (path := find(name, source.file, data_dir)) is not None:
        return path
    folder = data_folder(data_dir) / name
    reasons = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for mirror in source.mirrors:
            for attempt in range(attempts):
                if attempt:
                    time.sleep(wait * 2 ** (attempt - 1))
                try:
                    return _download(mirror + source.file, source, folder, progress, timeout)
                except (requests.RequestException, BadFile) as error:
                    reasons.append(_reason(error))
                    log.info("%s%s: %s", mirror, source.file, reasons[-1])
                    if isinstance(error, BadFile) or 400 <= _status(error) < 500:
                        break  # a mirror that says no, or sends something else whole, will do so again
    except OSError as error:
        reasons.append(f"{folder}: {error.strerror or error}")
    address = source.mirrors[0] + source.file
    why = "; ".join(dict.fromkeys(reasons))
    raise Unavailable(f"{source.file} could not be downloaded ({why}); get it from {address} and put it into {folder}")


def _download(url: str, source: Source, folder: Path, progress: bool, timeout: float) -> Path:
    """Return the final path after the whole file came, was compared with its hash, and was moved there in one step."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=f"{source.file}.", suffix=".part")
    os.close(handle)
    partial, final = Path(name), folder / source.file
    try:
        with _bar(source.file, progress) as shown:
            # a server that unpacks .gz on the way would change the bytes that the hash is of
            headers = {"Accept-Encoding": "identity"}
            fetch = pooch.HTTPDownloader(_DownloadBar(shown, source), 1 << 16, timeout=timeout, headers=headers)
            fetch(url, str(partial), None)
        found = file_hash(partial, source.algorithm)
        if found != source.digest:
            with partial.open("rb") as file:
                page = file.read(512).lstrip()[:1] == b"<"
            what = "a web page instead of data" if page else f"{partial.stat().st_size:,} bytes with {found}"
            raise BadFile(source.file, f"{source.algorithm} {source.digest}", what)
        partial.chmod(0o644)
        partial.replace(final)
        write_record([final], folder)
        return final
    finally:
        partial.unlink(missing_ok=True)


def _bar(title: str, visible: bool) -> Progress:
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not visible)


class _DownloadBar:
    """What pooch reports progress to; it also stops a server that sends more than the file can be."""

    def __init__(self, progress: Progress, source: Source) -> None:
        self.progress, self.source = progress, source
        self.done, self.total = 0, 0
        self.task: TaskID | None = None  # shown from the first byte on, so that a dead mirror leaves no empty bar

    def update(self, count: int) -> None:
        self.done += count
        if self.done > self.source.most + (1 << 20):
            raise BadFile(self.source.file, f"at most {self.source.most:,} bytes", "more")
        if self.task is None:
            self.task = self.progress.add_task(self.source.file)
        self.progress.update(self.task, total=self.total or None, completed=min(self.done, self.total or self.done))

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        if self.task is not None:
            self.progress.stop_task(self.task)


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError):
        return f"the server answered {_status(error)}"
    if isinstance(error, requests.Timeout):
        return "the server did not answer in time"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off before the end"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error)


def _status(error: Exception) -> int:
    response = error.response if isinstance(error, requests.HTTPError) else None
    return 0 if response is None else response.status_code
