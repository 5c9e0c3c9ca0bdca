"""What a planned device can do, by its maker's data sheet, and what of that is assumed to be reached. Imports no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from bsvi.tables.words import suggest

KernelKind = Literal["convolution", "product", "other"]


class Kernel(NamedTuple):
    """One operation on tensors: floating-point operations, and bytes read and written."""

    kind: KernelKind
    flops: int
    bytes: int


@dataclass(frozen=True)
class Device:
    """Peaks per second, and the share of them that a plan counts on."""

    name: str
    float32: float  # FLOP/s of matrix products: torch's default precision for them is plain float32
    convolution: (
        float  # FLOP/s of convolutions: torch lets cuDNN use TF32 for them where the hardware has it (Ampere and later)
    )
    bandwidth: float = math.inf  # bytes/s of its memory
    memory: float = math.inf  # bytes
    efficiency: float = 0.4  # assumed share of the peak FLOP rate that a large convolution reaches
    streaming: float = 0.8  # assumed share of the bandwidth that an elementwise operation reaches
    launch: float = 10e-6  # assumed seconds that no operation undercuts: Python, autograd, launch

    def seconds(self, kernels: Mapping[Kernel, int]) -> float:
        """Return the time of so many operations one after the other: each by what limits it (the roofline).

        >>> DEVICES["A100"].seconds({Kernel("convolution", 10**12, 10**6): 1}) == 1e12 / (0.4 * 156e12)
        True
        """
        rates = {"convolution": self.convolution, "product": self.float32, "other": math.inf}
        return sum(
            count
            * max(
                kernel.flops / (self.efficiency * rates[kernel.kind]),
                kernel.bytes / (self.streaming * self.bandwidth),
                self.launch,
            )
            for kernel, count in kernels.items()
        )

    def __str__(self) -> str:
        if self.bandwidth == math.inf:
            return f"{self.name}: {self.float32:.3g} FLOP/s as given, nothing else counted"
        tf32 = f", TF32 {self.convolution / 1e12:g}" if self.convolution != self.float32 else ""
        return (
            f"{self.name} (float32 {self.float32 / 1e12:g}{tf32} TFLOP/s, {self.bandwidth / 1e9:g} GB/s, "
            f"{self.memory / 1e9:g} GB); assumed {self.efficiency:.0%} of that rate, {self.streaming:.0%} of the "
            f"bandwidth, {1e6 * self.launch:g} us at least per operation"
        )


def _device(name: str, float32: float, tf32: float | None, bandwidth: float, memory: float) -> Device:
    return Device(name, float32 * 1e12, (tf32 or float32) * 1e12, bandwidth * 1e9, memory * 1e9)


DEVICES = {  # TFLOP/s in float32 and dense TF32, GB/s, GB
    device.name: device
    for device in (
        _device("A100", 19.5, 156.0, 1555.0, 40.0),
        _device("A100-80GB", 19.5, 156.0, 2039.0, 80.0),
        _device("H100", 67.0, 494.7, 3350.0, 80.0),
        _device("H100-PCIe", 51.2, 378.0, 2000.0, 80.0),
        _device("V100", 15.7, None, 900.0, 16.0),
        _device("P100", 10.6, None, 732.0, 16.0),
        _device("T4", 8.1, None, 320.0, 16.0),
        _device("L4", 30.3, 60.0, 300.0, 24.0),
        _device("L40S", 91.6, 183.0, 864.0, 48.0),
        _device("A10", 31.2, 62.5, 600.0, 24.0),
        _device("A6000", 38.7, 77.4, 768.0, 48.0),
        _device("RTX-3090", 35.6, None, 936.0, 24.0),
        _device("RTX-4090", 82.6, None, 1008.0, 24.0),
        _device("GTX-1080-Ti", 11.3, None, 484.0, 11.0),
    )
}


def find_device(name: str, efficiency: float | None = None, flops: float | None = None) -> Device:
    """Return a known device, with another efficiency if one is given; with ``flops`` a device of just that rate.

    >>> find_device("nvidia a100", efficiency=0.25).efficiency, find_device("", flops=5e12).float32
    (0.25, 5000000000000.0)
    """
    if flops is not None:
        if not (flops > 0 and math.isfinite(flops)):
            raise ValueError(f"--flops is operations per second that are reached, such as 5e12; got {flops:g}")
        return Device(name or "given rate", flops, flops, efficiency=1.0, launch=0.0)
    known = {_plain(known): device for known, device in DEVICES.items()}
    if _plain(name) not in known:
        hint = suggest(_plain(name), known)
        raise ValueError(
            f"unknown device {name!r}; {hint}There are cpu and cuda (measured here), {', '.join(DEVICES)}; for any other "
            "give the rate that it reaches: --flops 5e12"
        )
    device = known[_plain(name)]
    if efficiency is None:
        return device
    if not 0 < efficiency <= 1:
        raise ValueError(f"--efficiency is a share of the peak rate in (0, 1], got {efficiency:g}")
    return replace(device, efficiency=efficiency)


def _plain(name: str) -> str:
    """A name without case, maker and punctuation: 'NVIDIA RTX 4090' is 'rtx4090'."""
    return "".join(c for c in name.lower().removeprefix("nvidia") if c.isalnum())
