"""A trained model from its run folder, for evaluating and sampling."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bsvi.config import EXPERIMENTS, Experiment, update
from bsvi.data import Dataset
from bsvi.experiments import build_model, build_objective, load_data
from bsvi.model import VAE
from bsvi.objectives import Objective
from bsvi.runs import RunError


@dataclass(frozen=True)
class Trained:
    """The best weights of a run, in eval mode, with what they were trained on."""

    model: VAE
    experiment: Experiment
    about: dict[str, Any]  # the run's config.json
    step: int
    folder: Path
    device: torch.device
    objective: Objective | None = None  # with pi of the same step; None where an older file does not hold it

    def data(self, data_dir: Path | None = None) -> Dataset:
        """The images of the run; others than it was trained on are refused."""
        dataset = load_data(self.experiment, data_dir)
        if dataset.sha256 != self.about["data"]["sha256"]:
            raise RunError(
                f"these are other images than {self.folder} was trained on (data hash {dataset.sha256[:12]}, then "
                f"{self.about['data']['sha256'][:12]}); point --data-dir to the same files"
            )
        return dataset


def load_trained(path: Path, device: torch.device) -> Trained:
    """Read ``model.safetensors`` of a run folder (or such a file by itself)."""
    file = path if path.suffix == ".safetensors" else path / "model.safetensors"
    if not file.exists():
        what = "has no model yet; let bsvi train finish its first validation" if path.is_dir() else "does not exist"
        raise RunError(f"{path} {what}; name a run folder such as runs/digits/bsvi-sir-seed0")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            about = json.loads((opened.metadata() or {})["bsvi"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{file} is not a model of bsvi train, or damaged ({type(error).__name__})") from None
    if not isinstance(about, dict) or not all(isinstance(about.get(name), dict) for name in ("config", "data")):
        raise RunError(own_model(file, any(name.startswith("objective.") for name in tensors)))
    experiment = update(EXPERIMENTS["digits"], about["config"], str(file))
    learned = {name: tensors.pop(name) for name in [*tensors] if name.startswith("objective.")}
    likelihood = "logistic" if "decoder.likelihood.rho" in tensors else "bernoulli"
    model = build_model(experiment, tuple(about["data"]["shape"]), likelihood)
    objective = build_objective(experiment).to(device).eval()
    try:
        model.load_state_dict(tensors)
        if learned:
            objective.load_state_dict({name.removeprefix("objective."): value for name, value in learned.items()})
    except RuntimeError:
        raise RunError(
            f"{file} does not fit the networks of its own configuration; was it made by another version?"
        ) from None
    known = objective if learned or not objective.state_dict() else None
    return Trained(model.to(device).eval(), experiment, about, int(about["step"]), file.parent, device, known)


def own_model(file: Path, with_pi: bool) -> str:
    """What to do with the weights of a model that only its owner's code can build."""
    weights = f"safetensors.torch.load_file({str(file)!r})"
    if with_pi:
        weights = f"{{name: value for name, value in {weights}.items() if not name.startswith('objective.')}}"
    return (
        f"{file} names no experiment of bsvi train: it is a model of your own, as bsvi.train(run=...) saves it; in Python, "
        f"build it, model.load_state_dict({weights}), then bsvi.evaluate(model, batches), "
        "bsvi.amortization_gap(model, batches), or draw from it"
    )
