"""Where networks, data and methods meet: an experiment's configuration becomes a model, an objective and batches."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bsvi.beyond.updates import Rates
from bsvi.data import Batch, Dataset, evaluation_batches, load, training_batches
from bsvi.experiments.architectures import find_architecture
from bsvi.experiments.config import Experiment, parse_phases
from bsvi.methods import objective
from bsvi.model import VAE
from bsvi.nets import PixelCNN
from bsvi.objectives import Objective
from bsvi.refinement import SVI
from bsvi.tables.likelihoods import LIKELIHOODS
from bsvi.training.loop import Training
from bsvi.training.phases import Phase, phase_of

VALID_BATCH = 200  # validation runs without theta's graphs, so it can take more at once


@dataclass(frozen=True)
class BuiltExperiment:
    """All that ``train`` needs, on one device; of several processes that train together, process ``rank`` of ``size``."""

    model: VAE
    objective: Objective  # of the last phase, where there are phases
    dataset: Dataset
    experiment: Experiment
    device: torch.device
    rank: int = 0
    size: int = 1
    phases: tuple[Phase, ...] = ()

    @property
    def learns_from(self) -> Objective | list[Phase]:
        """The objective, or the phases that take turns."""
        return [*self.phases] or self.objective

    def objective_at(self, step: int) -> Objective:
        """The objective that a checkpoint of this step belongs to."""
        return phase_of([*self.phases], step).objective if self.phases else self.objective

    def batches(self, start_step: int) -> Any:
        """This process's share of the training batches from this step on, a function of seed and step: resuming is exact."""
        e = self.experiment
        return training_batches(
            self.dataset.train,
            seed=e.seed,
            batch_size=e.batch_size,
            start_step=start_step,
            rank=self.rank,
            world_size=self.size,
            device=self.device,
        )

    def valid(self, _: int = 0) -> Any:
        return evaluation_batches(self.dataset.valid, batch_size=VALID_BATCH, device=self.device)

    def training(self, **limits: float) -> Training:
        """The experiment's training settings, with time limit and saving interval of the moment."""
        e = self.experiment
        return Training(
            seconds=e.seconds or math.inf,
            steps=e.steps,
            lr=e.optim.lr,
            max_grad_norm=e.optim.max_grad_norm,
            beta_start=e.anneal.start,
            beta_steps=e.anneal.steps,
            valid_every=e.valid_every,
            patience=e.patience,
            log_every=e.log_every,
            **limits,
        )


def load_data(e: Experiment, data_dir: Path | None = None, progress: bool = True) -> Dataset:
    """The experiment's images."""
    options: dict[str, Any] = {"size": e.data.size, "binarise": e.data.binarise}
    options = {name: value for name, value in options.items() if value is not None}
    return load(e.data.name, data_dir, extra=e.data.extra, progress=progress, **options)


def build_model(e: Experiment, shape: tuple[int, int, int], likelihood: str, spectral: bool | None = None) -> VAE:
    """The experiment's networks, freshly initialised: the caller seeds torch. ``spectral`` as for PixelCNN."""
    pixel = LIKELIHOODS.find(likelihood).make()
    return VAE(*find_architecture(e.net).build(e.net, shape[1:], pixel, spectral))


def build_objective(e: Experiment) -> Objective:
    svi = SVI(**e.svi.model_dump())
    made = objective(
        e.method,
        e.steps_of_refinement,
        svi,
        resampled=e.resampled,
        recompute=e.recompute,
        width=2 * e.net.latent,
        learned_rates=e.e2e.learned_rates,
        finite_difference=e.e2e.finite_difference,
    )
    for module in made.modules():
        if isinstance(module, Rates):
            module.optim_lr = e.e2e.rates_lr
    return made


def build_phases(e: Experiment, device: torch.device) -> tuple[Phase, ...]:
    """The experiment's phases, each with an objective of its own; none where it has one method."""
    found: list[Phase] = []
    for method, steps in parse_phases(e.phases) if e.phases else []:
        of_its_own = e.model_copy(update={"method": method})
        last = found[-1].last + steps if found else steps
        found.append(Phase(method, build_objective(of_its_own).to(device), last))
    return tuple(found)


def build(e: Experiment, device: torch.device, data_dir: Path | None = None, progress: bool = True) -> BuiltExperiment:
    """Model, objective and data of an experiment; the caller seeds torch, as its weights are drawn here."""
    dataset = load_data(e, data_dir, progress)
    model = build_model(e, dataset.shape, dataset.likelihood).to(device)
    phases = build_phases(e, device)
    objective = phases[-1].objective if phases else build_objective(e).to(device)
    return BuiltExperiment(model, objective, dataset, e, device, phases=phases)


def describe_data(dataset: Dataset) -> dict[str, Any]:
    """What a result must say of its data: name, hash, counts; of your own images also where they are."""
    counts: dict[str, int] = {str(split.name): len(split) for split in dataset.splits}
    place = {"path": dataset.place} if dataset.place else {}
    kind = {"likelihood": dataset.likelihood}
    return {"name": dataset.name, "sha256": dataset.sha256, "shape": list(dataset.shape), **kind, **counts, **place}


def reconstruct(model: VAE, batch: Batch, count: int = 8) -> torch.Tensor:
    """Images and what the decoder makes of the encoder's mean, (2, count, 1, height, width) in [0, 1]."""
    x = batch.x[:count]
    with torch.no_grad():
        z = model.posterior(model.encode(x)).mean
        decoder: Any = model.decoder
        silent = {"progress": lambda done, rows: None} if isinstance(decoder, PixelCNN) else {}
        return torch.stack([x, decoder.sample(z, generator=torch.Generator().manual_seed(0), **silent).to(x)])
