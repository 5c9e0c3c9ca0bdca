"""What a training step costs, counted on tensors without contents: in seconds and without memory, whatever its size."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bsvi.draws import weigh
from bsvi.experiments.build import build_model, build_objective
from bsvi.experiments.config import Experiment
from bsvi.model import VAE
from bsvi.parameters import in_eval_mode
from bsvi.planning.devices import Device, Kernel
from bsvi.planning.operations import OperationCounter
from bsvi.planning.pace import Pace, Passes, find_chunk
from bsvi.planning.plan import EVALUATION_BATCH, ImageCounts
from bsvi.refinement import SVI


@dataclass(frozen=True)
class Count:
    """One training step of a method, counted."""

    decoder_calls: int  # per example
    flops: int  # of the whole step
    decoder_flops: int
    memory: int  # bytes: weights, gradients, optimiser, best weights, and the most that is alive within a step
    kernels: dict[Kernel, int]


def build_on_meta(e: Experiment, images: ImageCounts, on_cpu: bool) -> VAE:
    """The experiment's networks on the meta device, with the arithmetic of the planned one.

    The transform along the width is for CPUs; everywhere else the decoder convolves directly.
    """
    model = build_model(e, images.shape, images.likelihood).to("meta")
    for layer in [] if on_cpu else getattr(model.decoder, "layers", ()):
        layer.spectral = False
    return model


def count_step(e: Experiment, images: ImageCounts, on_cpu: bool = False) -> Count:
    """One training step of the experiment's method, counted on tensors without contents: in seconds, whatever its size.

    >>> from bsvi.experiments.config import EXPERIMENTS
    >>> from bsvi.planning.plan import describe_images
    >>> e = EXPERIMENTS["omniglot"].model_copy(update={"method": "vae"})
    >>> found = count_step(e, describe_images(e))
    >>> found.decoder_calls, round(found.decoder_flops / 1e9), round(found.memory / 2**30, 1)
    (1, 150, 0.7)
    """
    model = build_on_meta(e, images, on_cpu)
    x = torch.empty(e.batch_size, *images.shape, device="meta")
    objective = build_objective(e).to("meta")
    weights = [*model.parameters(), *objective.parameters()]
    with OperationCounter():
        objective.refinement(model, x)  # what is tried and made at the first step alone is no part of the others
    with OperationCounter() as step:
        step.ignore([*weights, *model.buffers(), x])
        estimate = objective(model, x)
        estimate.loss.backward()
    with OperationCounter() as encoding:
        model.encode(x).sum().backward()
    size, buffers = _bytes(weights), _bytes(model.buffers())
    # weights, last step's gradients (freed after the forward pass), AMSGrad's three moments, and the best weights so far
    memory = 6 * size + 2 * buffers + step.peak
    return Count(estimate.decoder_calls, step.flops, step.flops - encoding.flops, memory, dict(step.kernels))


def count_steps(experiments: Mapping[str, Experiment], images: ImageCounts, on_cpu: bool = False) -> dict[str, Count]:
    """Each experiment's count; those that differ in pi alone, which costs nothing, are counted once."""
    counted: dict[str, Count] = {}
    kinds = {name: build_objective(e).extra_repr() for name, e in experiments.items()}
    for name, e in experiments.items():
        if kinds[name] not in counted:
            counted[kinds[name]] = count_step(e, images, on_cpu)
    return {name: counted[kind] for name, kind in kinds.items()}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def price_pace(e: Experiment, images: ImageCounts, device: Device, counts: dict[str, Count]) -> Pace:
    """The pace on a device that is known by its rates: every step from its count, and a decoder pass of the evaluation."""
    model = build_on_meta(e, images, on_cpu=device.name == "cpu")
    x = torch.empty(EVALUATION_BATCH, *images.shape, device="meta")
    lambda_0 = torch.zeros(len(x), 2 * e.net.latent, device="meta")
    svi = SVI(**e.svi.model_dump())

    def cost(draws: Iterable[Any]) -> float:
        with in_eval_mode(model), OperationCounter() as counter:
            for _ in draws:
                pass
        return device.seconds(counter.kernels)

    with torch.no_grad():
        forward = cost(weigh(model, x, model.posterior(lambda_0), find_chunk(x)) for _ in range(1)) / find_chunk(x)
    one, two = (cost(replace(svi, steps=steps).walk(model, x, lambda_0)) for steps in (1, 2))
    passes = Passes(forward, two - one, len(x))  # of no step: each method has its own count
    return Pace({name: device.seconds(count.kernels) for name, count in counts.items()}, passes, passes)
