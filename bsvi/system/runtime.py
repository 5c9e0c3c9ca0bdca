"""How the program runs on this machine: device, threads, allocator, compilation. Decided here, once, at start-up.

Importing this module does not import torch, so that `bsvi --help` stays quick.
"""

import ctypes
import math
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bsvi.system.clock import Stopwatch

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


@dataclass(frozen=True)
class Runtime:
    """What a user may choose; every default is right for most machines."""

    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: cuda where there is one
    threads: int = 0  # 0: torch's own choice, all cores
    compile: Literal["auto", "on", "off"] = "auto"  # auto: where there is a compiler and the decoder is worth it
    allocator: bool = True  # keep freed memory instead of giving it back after every step (glibc)


@dataclass(frozen=True)
class Started:
    """What was decided: where tensors go, how many threads, whether decoders are compiled, and why if not."""

    device: "torch.device"
    threads: int
    compile: Literal["auto", "on", "off"]
    allocator: bool
    notes: tuple[str, ...]


def count_cores() -> int:
    """The cores that this process may use: fewer than the machine has under taskset, SLURM or in some containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start(runtime: Runtime = Runtime()) -> Started:  # noqa: B008 - a frozen dataclass
    """Apply the choices to this process and return what was decided; `notes` are lines for the user.

    >>> start(Runtime(device="cpu", compile="off")).device.type
    'cpu'
    """
    allocator = runtime.allocator and keep_freed_memory()
    import torch

    if not 0 <= runtime.threads <= 1024:  # OpenMP ends the program where it cannot have them
        raise ValueError(f"threads must be 0 (all cores) to 1024, got {runtime.threads}")
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    # a product of denormal numbers takes a hundred times as long on some processors; they are below 1e-38, and count as zero
    torch.set_flush_denormal(True)
    notes = []
    mode = runtime.compile
    if mode != "off" and (problem := find_compiler_problem()):
        notes.append(f"running without compilation: {problem}")
        mode = "off"
    if mode != "off":
        # torch's own default is in /tmp; here the compiled decoders outlive a restart
        try:
            (cache_folder() / "compiled").mkdir(parents=True, exist_ok=True)
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
        except OSError:
            pass  # no writable home: torch's own default will do
    return Started(choose_device(runtime.device), torch.get_num_threads(), mode, allocator, tuple(notes))


def choose_device(name: str) -> "torch.device":
    """Return the device for 'auto', 'cpu' or 'cuda'; a missing one is a ValueError.

    Of several processes on a machine ($LOCAL_RANK, as torchrun sets it) each gets a GPU of its own.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but this torch sees no GPU; use --device auto or cpu")
    local = os.environ.get("LOCAL_RANK", "")
    if name == "cpu" or not local.isdigit():
        return torch.device(name)
    if int(local) >= torch.cuda.device_count():
        raise ValueError(
            f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}; start as many "
            "processes as GPUs, or use --device cpu"
        )
    torch.cuda.set_device(int(local))
    return torch.device("cuda", int(local))


def cache_folder() -> Path:
    """Return the folder for what can be made again: $BSVI_CACHE_DIR, or bsvi in the user's cache folder."""
    base = os.environ.get("BSVI_CACHE_DIR")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bsvi"


def set_allocator(threshold: int, trim: int | None = None) -> bool:
    """Set glibc's mmap and trim thresholds in bytes; return whether there was a glibc that took them."""
    trim = threshold if trim is None else trim
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 - another C library has no such function
        return bool(libc.mallopt(M_MMAP_THRESHOLD, threshold) and libc.mallopt(M_TRIM_THRESHOLD, trim))
    except (OSError, AttributeError, TypeError):
        return False


def keep_freed_memory() -> bool:
    """Stop glibc from returning every large activation to the system, to be faulted in again at the next step.

    Return whether it was done; elsewhere nothing happens. Old versions of glibc take no more than 32 MiB.
    """
    return set_allocator(1 << 30) or set_allocator(32 << 20)


def count_page_faults() -> int:
    """Return how often this process has had to ask the system for a page so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def find_compiler() -> str:  # what CXX names, or the system's
    return os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")


def find_compiler_problem() -> str | None:
    """Return None where torch.compile finds a C++ compiler and Python's headers, else one line saying what is missing."""
    compiler = find_compiler()
    if shutil.which(compiler) is None:
        return f"no C++ compiler ({compiler}) was found; install one, or name it in CXX"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's C headers (Python.h) were not found; on Debian: apt-get install python3-dev"
    return None


class CompiledByShape:
    """A function of tensors, compiled full-graph for the first few kinds of call it sees and eager for all others.

    A kind is what torch.compile specialises on here: shapes, types, and who requires a gradient. Odd batches at the end
    of an epoch, or of an evaluation, must not cost a compilation each. Should compilation fail, the eager path answers.
    """

    limit = 6
    backend = "inductor"
    seconds = 0.0  # that all first calls of this process took

    def __init__(
        self, function: Callable[..., Any], module: "torch.nn.Module | None", say: Callable[[str], None]
    ) -> None:
        import torch
        import torch._functorch.config
        import torch.compiler.config

        # A graph of bsvi is walked twice, for lambda and for theta, so the first walk must not overwrite what it has used.
        # The tag keeps code apart that was stored under the other setting: its second gradient would be wrong.
        torch._functorch.config.donated_buffer = False
        torch.compiler.config.cache_key_tag = torch.compiler.config.cache_key_tag or "bsvi-two-walks"
        self.eager, self.module, self.say = function, module, say
        self.compiled: Callable[..., Any] | None = torch.compile(
            function, fullgraph=True, dynamic=False, backend=self.backend
        )
        self.kinds: set[Hashable] = set()

    def __call__(self, *tensors: "torch.Tensor") -> Any:
        if self.compiled is None:
            return self.eager(*tensors)
        kind = self.kind(*tensors)
        if kind in self.kinds:
            return self.compiled(*tensors)
        if len(self.kinds) >= self.limit:
            return self.eager(*tensors)
        watch = Stopwatch()
        try:
            out = self.compiled(*tensors)
        except (
            Exception
        ) as error:  # whatever the compiler's reason, the run goes on; an error of ours comes again below
            out = self.eager(*tensors)
            self.compiled = None
            self.say(f"running without compilation: it failed with {type(error).__name__}")
            return out
        self.kinds.add(kind)
        CompiledByShape.seconds += watch.seconds
        return out

    def settle(self, *tensors: "torch.Tensor") -> Callable[..., Any]:
        """What answers further calls of this kind, which has been called before: to ask once for many calls."""
        return self.compiled if self.compiled is not None and self.kind(*tensors) in self.kinds else self.eager

    def kind(self, *tensors: "torch.Tensor") -> Hashable:
        import torch

        calls = tuple((tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors)
        if self.module is None:  # all that the function uses is given to it
            return calls, torch.is_grad_enabled()
        wants = tuple(parameter.requires_grad for parameter in self.module.parameters())
        return calls, wants, torch.is_grad_enabled(), self.module.training


def is_heavy(decoder: Any) -> bool:
    """Whether a pass through this decoder takes milliseconds per image: a million products or more, as in a PixelCNN."""
    layers = getattr(decoder, "layers", ())  # of a PixelCNN: each weight is used once per pixel
    return sum(p.numel() for layer in layers for p in layer.parameters()) * math.prod(decoder.image) >= 1e6


def is_worth_compiling(decoder: Any) -> bool:
    """Whether any run wins back what compiling takes: a heavy decoder, or one whose C++ is compiled in seconds, once."""
    return is_heavy(decoder) or getattr(decoder, "has_native_form", False)


def compile_decoder(
    decoder: Any, mode: Literal["auto", "on", "off"], say: Callable[[str], None] = lambda line: None
) -> bool:
    """Compile a `bsvi.nets.Decoder` in place if the mode says so; return whether it was done.

    Small PixelCNNs have a form in C++, which is compiled in seconds. For the others 'auto' leaves decoders alone whose step
    takes milliseconds: compiling takes half a minute or more the first time. The code is kept in `cache_folder()`.
    """
    if mode == "off" or not hasattr(decoder, "compile_with"):
        return False
    from bsvi.system.native import build_native

    if getattr(decoder, "has_native_form", False) and build_native(decoder, say):
        return True
    if mode == "auto" and not is_heavy(decoder):
        return False
    import torch

    # every decoder of a process shares one count of recompilations, and full-graph mode fails where it is used up
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    decoder.compile_with(lambda made: CompiledByShape(made, decoder if made == decoder.log_lik else None, say))
    return True
