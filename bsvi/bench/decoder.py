"""The speed of a training step with the package's decoder, as ratios to a plain port of the paper's architecture."""

import ctypes
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bsvi.bench.port import PlainPixelCNN
from bsvi.bench.rounds import Case, Rounds, run_interleaved
from bsvi.bench.steps import STEPS, Freeze, count_flops, freeze, leave_unfrozen
from bsvi.nets import PAPER_KERNELS, PixelCNN, ResNetEncoder
from bsvi.system.clock import ClockName
from bsvi.system.runtime import compile_decoder, find_compiler_problem, keep_freed_memory, set_allocator

VARIANTS = ("port", "port+allocator", "direct", "eager", "compiled", "compiled-unfrozen")


@dataclass(frozen=True)
class DecoderBench:
    """The paper's Omniglot model by default."""

    batch: int = 50
    image: tuple[int, int] = (28, 28)
    latent: int = 32
    channels: int = 32
    kernels: tuple[int, ...] = PAPER_KERNELS
    encoder: tuple[int, ...] = (64, 64, 64)
    variants: tuple[str, ...] = ("port", "port+allocator", "eager", "compiled")
    methods: tuple[str, ...] = tuple(STEPS)
    rounds: int = 7  # the median of 7 is not moved by three bad rounds
    threads: int = 0  # 0: torch's own choice
    clock: Literal["auto", "wall", "cpu"] = "auto"  # auto: wall; when that run is void, CPU time on one thread

    def __post_init__(self) -> None:
        wrong = [v for v in self.variants if v not in VARIANTS] + [m for m in self.methods if m not in STEPS]
        if wrong:
            raise ValueError(
                f"unknown {', '.join(wrong)}; variants are {', '.join(VARIANTS)}; methods {', '.join(STEPS)}"
            )
        if self.rounds < 1 or self.batch < 1:
            raise ValueError(f"rounds and batch must be at least 1, got {self.rounds} and {self.batch}")


@dataclass(frozen=True)
class BuiltVariant:
    """One variant ready to run: its decoder, how it freezes parameters, and the allocator it is measured with."""

    decoder: nn.Module
    freeze: Freeze = field(default=freeze)
    allocator: bool = True


def reset_allocator() -> None:
    """Put malloc back to the most it keeps by itself, 32 MiB and twice that: fewer page faults than a fresh process has.

    Its own thresholds move while it runs, and it stops moving them once they are set; so the port is favoured a little.
    """
    set_allocator(32 << 20, 64 << 20)


def build(name: str, settings: DecoderBench, weights: dict[str, Any], say: Callable[[str], None]) -> BuiltVariant:
    """Return one variant with the given weights."""
    sizes: dict[str, Any] = {
        "latent": settings.latent,
        "image": settings.image,
        "channels": settings.channels,
        "kernels": settings.kernels,
    }
    if name.startswith("port"):
        port = PlainPixelCNN(**sizes)
        port.load_state_dict(weights)
        return BuiltVariant(port, leave_unfrozen, allocator=name.endswith("allocator"))
    decoder = PixelCNN(**sizes, spectral=False if name == "direct" else None)
    decoder.load_state_dict(weights)
    if name.startswith("compiled"):
        compile_decoder(decoder, "on", say)
    return BuiltVariant(decoder, leave_unfrozen if name.endswith("unfrozen") else freeze)


def run(settings: DecoderBench, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return all that was measured, ready for JSON: per method and variant the seconds, ratios, rates and page faults."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    variants = ("port", *(name for name in settings.variants if name != "port"))
    if problem := find_compiler_problem():
        say(f"compiled variants are left out: {problem}")
        variants = tuple(name for name in variants if not name.startswith("compiled"))
    x = (torch.rand(settings.batch, 1, *settings.image) < 0.3).float()
    encoder = ResNetEncoder(settings.latent, settings.image, settings.encoder)
    weights = PlainPixelCNN(settings.latent, settings.image, settings.channels, settings.kernels).state_dict()
    built = {name: build(name, settings, weights, say) for name in variants}
    flops = _count_flops(settings, encoder, built, x)
    _warm_up(settings, encoder, built, x, say)
    cases = _make_cases(settings, encoder, built, x)

    clock: ClockName = "cpu" if settings.clock == "cpu" else "wall"
    if clock == "cpu":
        torch.set_num_threads(1)
    done = run_interleaved(cases, settings.rounds, clock, say)
    result = _make_result(settings, cases, done, flops)
    if done.void and settings.clock == "auto":
        say("VOID: sgemm's median is under 90% of its best; measuring again in CPU time on one thread")
        torch.set_num_threads(1)
        result["fallback"] = _make_result(settings, cases, run_interleaved(cases, settings.rounds, "cpu", say), flops)
    return result


def _make_cases(
    settings: DecoderBench, encoder: nn.Module, built: dict[str, BuiltVariant], x: torch.Tensor
) -> list[Case]:
    def prepare(one: BuiltVariant) -> None:
        # each variant under its own allocator, warmed by one short step that is not timed
        _trim()
        keep_freed_memory() if one.allocator else reset_allocator()
        STEPS["vae"](encoder, one.decoder, x)
        for module in (encoder, one.decoder):
            module.zero_grad(set_to_none=True)

    def case(method: str, name: str) -> Case:
        one, step = built[name], STEPS[method]
        return Case(
            f"{method} {name}",
            f"{method} port",
            run=lambda: step(encoder, one.decoder, x, one.freeze),
            prepare=lambda: prepare(one),
        )

    return [case(method, name) for method in settings.methods for name in built]


def _warm_up(
    settings: DecoderBench,
    encoder: nn.Module,
    built: dict[str, BuiltVariant],
    x: torch.Tensor,
    say: Callable[[str], None],
) -> None:
    """Compile everything that will be compiled before the first round."""
    for name, one in built.items():
        if name.startswith("compiled"):
            say(f"compiling: {name} (cached for the next run)")
            for method in settings.methods:
                STEPS[method](encoder, one.decoder, x, one.freeze)


def _count_flops(
    settings: DecoderBench, encoder: nn.Module, built: dict[str, BuiltVariant], x: torch.Tensor
) -> dict[str, dict[str, int]]:
    """Return the counted operations per method and variant; on the meta device, so that it costs nothing."""
    sizes = (settings.latent, settings.image)
    counted: dict[str, dict[str, int]] = {}
    ghost = ResNetEncoder(*sizes, settings.encoder).to("meta")
    for name in built:
        spectral = False if name == "direct" else None
        plain = (settings.channels, settings.kernels)
        twin = PlainPixelCNN(*sizes, *plain) if name.startswith("port") else PixelCNN(*sizes, *plain, spectral=spectral)
        for method in settings.methods:
            counted.setdefault(method, {})[name] = count_flops(STEPS[method], ghost, twin.to("meta"), x.to("meta"))
    return counted


def _make_result(
    settings: DecoderBench, cases: list[Case], done: Rounds, flops: dict[str, dict[str, int]]
) -> dict[str, Any]:
    rows = []
    rate = sorted(done.sgemm)[len(done.sgemm) // 2] * 1e9
    for case in cases:
        method, variant = case.name.split(" ")
        row = {"method": method, "variant": variant, **done.summary(case), "flops": flops[method][variant]}
        row["of_sgemm"] = row["flops"] / row["seconds"] / rate
        # the rate at which the port's arithmetic would have to run to take this long
        row["port_arithmetic_of_sgemm"] = flops[method]["port"] / row["seconds"] / rate
        rows.append(row)
    return {
        "settings": asdict(settings),
        "clock": done.clock,
        "threads": torch.get_num_threads(),
        "void": done.void,
        "sgemm_gflops": done.sgemm,
        "machine": describe_machine(),
        "rows": rows,
    }


def describe_machine() -> dict[str, str]:
    """Return what the figures depend on: processor, torch, system."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else ""
    return {"processor": model or platform.processor(), "torch": torch.__version__, "system": platform.platform()}


def _trim() -> None:
    """Give back free memory, so that no variant lives on what another one has faulted in."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
