"""Files of a folder that may come from a stranger: no link in it is followed, and nothing but a regular file is touched.

The folder itself is the user's word, and may be reached through links; what is *in* it is not. Every file is opened relative to
the folder's handle, so a link that is laid in the way between a look and a write changes nothing. A file with a second name
(a hard link) is read but never written in place: what has that other name would change too.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_IN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY  # a pipe must not make us wait

_JOINERS = "\u200c\u200d"  # of Persian, of Indic scripts, of emoji: they are never seen, but part of words


class UnsafeFile(OSError):
    """A link, a pipe, a device, a file that is too large: ``strerror`` says what it is and what to do."""


def read_bytes(path: Path, limit: int, within: Path | None = None) -> bytes:
    """The bytes of a regular file of at most ``limit``; ``within`` as for ``open_to_read``."""
    with open_to_read(path, within) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UnsafeFile(errno.EFBIG, f"has {size:,} bytes, where no more than {limit:,} are read", str(path))
        return file.read(size)


def open_to_read(path: Path, within: Path | None = None) -> BinaryIO:
    """A regular file, open for reading. No link that leaves its folder is followed, nor one between ``within`` and it."""
    with open_folder_of(path, within) as folder:
        return os.fdopen(_open(path, os.O_RDONLY, folder), "rb")


def open_to_write(path: Path, flags: int = os.O_CREAT) -> int:
    """The descriptor of a regular file for reading and writing in place; made where there is none, as ``flags`` say."""
    with open_folder_of(path, create=bool(flags & os.O_CREAT)) as folder:
        return _open(path, os.O_RDWR | flags, folder)


def check_plain(path: Path) -> None:
    """Raise UnsafeFile where there is something that ``open_to_write`` would refuse."""
    try:
        os.close(open_to_write(path, 0))
    except UnsafeFile:
        raise
    except OSError:
        pass


def write_atomically(path: Path, data: bytes, within: Path | None = None) -> None:
    """Write, flush to the disk, rename, flush the folder: after a crash ``path`` is the old file or the new one, whole.

    A link of that name is replaced, not followed. Where it fails (disk full), the temporary file is removed, the old file
    stays, and the error is raised.
    """
    temporary = f".{path.name[:50]}.{os.getpid()}.tmp"  # a long name may have 255 bytes already
    with open_folder_of(path, within, create=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)  # of a dead process that had our number
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(temporary, flags, 0o666, dir_fd=folder)
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            if isinstance(error, OSError):
                error.filename, error.filename2 = str(path), None  # the name that the user knows
            raise
        flush(folder)


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, or raise OSError: a disk that fills up takes a part first."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def flush(folder: int) -> None:
    """Make a rename in this open folder durable."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left behind in the middle of a write."""
    for left in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            left.unlink()


def make_folder(path: Path, within: Path) -> None:
    """Make a folder below ``within``, where there is none; UnsafeFile for a link of that name."""
    with open_folder_of(path / "_", within, create=True):
        pass


@contextlib.contextmanager
def open_folder_of(path: Path, within: Path | None = None, create: bool = False) -> Iterator[int]:
    """The open folder that holds ``path``: ``within`` may be reached through links, the folders below it may not."""
    within = path.parent if within is None else within
    if create:
        within.mkdir(parents=True, exist_ok=True)
    folder = os.open(within, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.relative_to(within).parts[:-1]:
            if part == "..":
                raise UnsafeFile(errno.EACCES, f"leaves {within}, which is not allowed", str(path))
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            below = _open_folder(path, part, folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _open_folder(path: Path, part: str, folder: int) -> int:
    try:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            reason = f"cannot be used: {part} is a link or a file, not a folder; remove it"
            raise UnsafeFile(error.errno, reason, str(path)) from None
        raise


def _open(path: Path, flags: int, folder: int) -> int:
    try:
        descriptor = os.open(path.name, flags | _IN, 0o666, dir_fd=folder)
    except OSError as error:
        error.filename = str(path)
        if error.errno in (errno.ELOOP, errno.EMLINK):
            if flags & os.O_ACCMODE == os.O_RDONLY and (name := _target_beside(path, folder)) is not None:
                return _open(path.with_name(name), flags, folder)
            text = "is a link, which is not followed; put the file itself there, or remove the link"
            raise UnsafeFile(error.errno, text, str(path)) from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise UnsafeFile(error.errno, "is not a regular file; remove it", str(path)) from None
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        raise UnsafeFile(errno.EINVAL, "is not a regular file; remove it", str(path))
    if about.st_nlink > 1 and flags & os.O_ACCMODE != os.O_RDONLY:
        os.close(descriptor)
        text = f"has {about.st_nlink} names (hard links), and would be changed under each; copy the folder, or the file"
        raise UnsafeFile(errno.EMLINK, text, str(path))
    return descriptor


def _target_beside(path: Path, folder: int) -> str | None:
    """The name that a link leads to, if it is a file of the same folder and no link itself."""
    with contextlib.suppress(OSError):
        name = os.readlink(path.name, dir_fd=folder)
        if name == os.path.basename(name) and stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode):
            return name
    return None


def printable(text: object, limit: int = 500) -> str:
    """One line of printable characters, whatever the text was: for strings of files on their way to a log or a terminal.

    >>> printable("a\\nb\\x1b[2Jc\\u202ed"), printable("x" * 20, 8)
    ('a b\\\\x1b[2Jc\\\\u202ed', 'xxxxx...')
    """
    line = " ".join(str(text)[: 8 * limit].split())
    line = "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
