"""Functions in C++, compiled for this machine when they are first needed and kept in the cache folder. Imports no torch."""

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bsvi.system.clock import Stopwatch
from bsvi.system.runtime import CompiledByShape, cache_folder, find_compiler, find_compiler_problem

_resting: list[bool] = []  # one entry for each `rest` that is open

FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w"]
MOST_SECONDS = 300.0


class NativeError(RuntimeError):
    """Why a function in C++ cannot be had here, in one line."""


@contextmanager
def rest() -> Iterator[None]:
    """Within this context nothing runs in C++: for what is differentiated twice, which the layers themselves do better."""
    _resting.append(True)
    try:
        yield
    finally:
        _resting.pop()


def is_resting() -> bool:
    """Whether a ``rest`` is open."""
    return bool(_resting)


def build_native(decoder: Any, say: Callable[[str], None]) -> bool:
    """Give a decoder its functions in C++; return whether it has them. Their seconds count as those of compiling."""
    watch = Stopwatch()
    try:
        decoder.build_native()
    except NativeError as error:
        say(f"no C++ form of the decoder: {error}")
        return False
    CompiledByShape.seconds += watch.seconds
    return True


def load_library(source: Path, macros: dict[str, str]) -> ctypes.CDLL:
    """The functions of ``source``, compiled with these macros; NativeError where that does not work.

    What was compiled before is found by the source, the headers beside it, macros, compiler and processor: a home folder may
    serve machines of several kinds.

    Example:
        >>> load_library(Path("missing.cpp"), {})
        Traceback (most recent call last):
        ...
        bsvi.system.native.NativeError: missing.cpp cannot be read
    """
    try:
        text = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    except OSError:
        raise NativeError(f"{source.name} cannot be read") from None
    if problem := find_compiler_problem():
        raise NativeError(problem)
    words = [find_compiler(), *FLAGS, *(f"-D{name}={value}" for name, value in macros.items())]
    key = hashlib.sha256(repr((text, words, describe_machine())).encode()).hexdigest()[:24]
    folder = cache_folder() / "native"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="bsvi-native-"))
    made = folder / f"{source.stem}-{key}.so"
    try:
        if not made.exists():
            compile_to(made, source, words)
        return ctypes.CDLL(str(made))
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeError(f"{source.name} could not be compiled ({type(error).__name__})") from None


def compile_to(made: Path, source: Path, words: list[str]) -> None:
    """Compile into a file of its own first: two processes may do it at once, and one may be killed."""
    handle, part = tempfile.mkstemp(dir=made.parent, suffix=".part")
    os.close(handle)
    try:
        for extra in (["-march=native"], []):  # not every compiler knows its own processor
            done = subprocess.run(
                [*words, *extra, "-o", part, str(source)], capture_output=True, timeout=MOST_SECONDS, check=False
            )
            if done.returncode == 0:
                os.chmod(part, 0o700)
                os.replace(part, made)
                return
        raise subprocess.SubprocessError(f"the compiler ended with code {done.returncode}")
    finally:
        Path(part).unlink(missing_ok=True)


def describe_machine() -> str:
    """The processor's kind and abilities: code for one does not run on all."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.split("\t")[0].strip() in ("flags", "Features", "model name")}
    return repr((platform.machine(), platform.processor(), sorted(told)))
