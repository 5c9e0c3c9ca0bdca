"""A trained model from its run folder, for evaluating and sampling."""

from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

import torch

from bsvi.beyond.with_refinement import add_refinement
from bsvi.data import Dataset
from bsvi.experiments.architectures import find_architecture
from bsvi.experiments.build import build_model, build_objective, load_data
from bsvi.experiments.changes import update_experiment
from bsvi.experiments.config import Experiment
from bsvi.model import VAE
from bsvi.objectives import Objective
from bsvi.runs.folder import RunError
from bsvi.runs.weights import Header, read_header, read_tensors
from bsvi.system.files import open_to_read, printable
from bsvi.system.reading import parse_json
from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.likelihoods import LIKELIHOODS

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
MOST_PIXELS = 1 << 25  # a PixelCNN's layer keeps some matrices of width x width


@dataclass(frozen=True)
class TrainedModel:
    """The best weights of a run, in eval mode, with what they were trained on."""

    model: VAE
    experiment: Experiment
    about: dict[str, Any]  # the run's config.json
    step: int
    folder: Path
    device: torch.device
    objective: Objective | None = None  # with pi of the same step; None where an older file does not hold it

    @property
    def inference(self) -> Any:
        """The model, whose lambda_0 is where the steps that were trained with it end, if there are any."""
        return add_refinement(self.model, self.objective)

    @property
    def steps(self) -> int:
        """How many steps of refinement were trained with the model; 0 where its encoder infers alone."""
        return 0 if self.inference is self.model else self.objective.refinement.svi.steps  # type: ignore[union-attr]

    def data(self, data_dir: Path | None = None, name: str | None = None) -> Dataset:
        """The images of the run, or those at ``name``; others than it was trained on are refused, by their hash."""
        data = self.experiment.data.model_copy(update={"name": self.locate_data(data_dir) if name is None else name})
        dataset = load_data(self.experiment.model_copy(update={"data": data}), data_dir)
        if dataset.sha256 != self.about["data"]["sha256"]:
            raise RunError(
                f"these are other images than {self.folder} was trained on (data hash {dataset.sha256[:12]}, then "
                f"{self.about['data']['sha256'][:12]}); name the same ones with --data-dir or --data.name"
            )
        if [*dataset.shape] != self.about["data"]["shape"]:
            raise RunError(f"{self.folder} was trained on images of another shape than these, {dataset.shape}")
        return dataset

    def locate_data(self, data_dir: Path | None = None) -> str:
        """The name of a public data set, or where someone's own images are now: below ``data_dir``, or where they were."""
        name = self.experiment.data.name
        if name in DATA_SETS:
            return name
        known = self.about["data"].get("path")
        places = [Path(known)] if isinstance(known, str) and known else []
        places = [*places, Path(name)] if data_dir is None else [data_dir / Path(name).name, data_dir]
        found = next((place for place in places if place.exists()), None)
        if found is None:
            raise RunError(
                f"the images of {self.folder} are not at {printable(places[0])}; name the place where they are now with "
                "--data.name PATH"
            )
        return str(found)


def load_trained(path: Path, device: torch.device) -> TrainedModel:
    """Read ``model.safetensors`` of a run folder (or such a file by itself).

    The file may come from a stranger: its header, its configuration and the shapes of the networks that this describes are
    compared before anything is built or read into memory.
    """
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    try:
        with open_to_read(file) as opened:
            header = read_header(cast(BufferedIOBase, opened))
            about = parse_json(header.metadata.get("bsvi", "{}").encode())
            if not isinstance(about, dict) or not all(isinstance(about.get(name), dict) for name in ("config", "data")):
                raise RunError(explain_own_model(file, any(name.startswith("objective.") for name in header.shapes)))
            experiment, shape = read_description(about, file)
            likelihood = read_likelihood(about["data"], header)
            check_shapes(experiment, shape, likelihood, header, file)
            tensors = read_tensors(cast(BufferedIOBase, opened))
    except (FileNotFoundError, NotADirectoryError):
        what = "has no model yet; let bsvi train finish its first validation" if path.is_dir() else "does not exist"
        what = "is no run folder" if path.exists() and not path.is_dir() else what
        raise RunError(f"{path} {what}; name a run folder such as runs/digits/bsvi-sir-seed0") from None
    except OSError as error:
        raise RunError(f"{file} {error.strerror}") from None
    except ValueError as error:
        raise RunError(f"{file} is not a model of bsvi train, or damaged ({printable(error, 200)})") from None
    if unusable := [name for name, value in tensors.items() if not value.isfinite().all()]:
        raise RunError(f"{file} has weights that are not finite ({printable(unusable[0], 80)}); restore it")
    learned = {name: tensors.pop(name) for name in [*tensors] if name.startswith("objective.")}
    model = build_model(experiment, shape, likelihood)
    model.load_state_dict(tensors)
    objective = build_objective(experiment).to(device).eval()
    if learned:
        objective.load_state_dict({name.removeprefix("objective."): value for name, value in learned.items()})
    known = objective if learned or not objective.state_dict() else None
    return TrainedModel(model.to(device).eval(), experiment, about, about["step"], file.parent, device, known)


def read_description(about: dict[str, Any], file: Path) -> tuple[Experiment, tuple[int, int, int]]:
    """The experiment and the shape of its images, or ValueError where something is missing or out of bounds."""
    experiment = update_experiment(Experiment(), about["config"], "its configuration")
    shape, step = about["data"].get("shape"), about.get("step")
    if not isinstance(about["data"].get("sha256"), str) or type(step) is not int or not 0 <= step < 1 << 53:
        raise ValueError("it lacks its step or the hash of its data")
    if not isinstance(shape, list) or len(shape) != 3 or any(type(side) is not int for side in shape) or shape[0] != 1:
        raise ValueError("its images have no shape")
    layers = find_architecture(experiment.net).count_layers(experiment.net)
    if not 1 <= min(shape) <= max(shape) <= MOST_PIXELS or shape[2] ** 2 * layers > MOST_PIXELS:
        raise ValueError(f"images of {shape[1]} x {shape[2]} pixels are too large for its networks")
    return experiment, (1, shape[1], shape[2])


def read_likelihood(data: dict[str, Any], header: Header) -> str:
    """The likelihood that a run names; ValueError where no row has that name. Older runs name none: a tensor tells it."""
    name = data.get("likelihood", "logistic" if "decoder.likelihood.rho" in header.shapes else "bernoulli")
    if not isinstance(name, str):
        raise ValueError("its likelihood has no name")
    LIKELIHOODS.find(name)
    return name


def check_shapes(
    experiment: Experiment, shape: tuple[int, int, int], likelihood: str, header: Header, file: Path
) -> None:
    """RunError unless the file holds what the networks of its configuration need, each of the right type and shape."""
    try:
        with torch.device("meta"):  # shapes without memory
            wanted = build_model(experiment, shape, likelihood, spectral=False).state_dict()
            learned = build_objective(experiment).state_dict()
    except RuntimeError:
        raise ValueError("networks larger than any memory") from None
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in wanted.items()}
    pi = {f"objective.{name}": (tuple(value.shape), value.dtype) for name, value in learned.items()}
    held = {name: (header.shapes[name], DTYPES.get(kind)) for name, kind in header.types.items()}
    if held not in (shapes, shapes | pi):
        raise RunError(f"{file} does not fit the networks of its own configuration; was it made by another version?")


def explain_own_model(file: Path, with_pi: bool) -> str:
    """What to do with the weights of a model that only its owner's code can build."""
    weights = f"safetensors.torch.load_file({str(file)!r})"
    if with_pi:
        weights = f"{{name: value for name, value in {weights}.items() if not name.startswith('objective.')}}"
    return (
        f"{file} names no experiment of bsvi train: it is a model of your own, as bsvi.train(run=...) saves it; in Python, "
        f"build it, model.load_state_dict({weights}), then bsvi.evaluate(model, batches), "
        "bsvi.amortization_gap(model, batches), or draw from it"
    )
