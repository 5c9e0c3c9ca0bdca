"""What an experiment is made of: settings as data, each with its default and its reason. Imports no torch.

The paper's hyperparameters are those of its appendix D (table of hyperparameters) unless a field says otherwise.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.methods import METHODS, RATES_LR

MOST, LONGEST = 1_000_000, 10**12  # of sizes and of steps: what is larger is a slip of the finger
MOST_SEED = 2**64 - 1  # torch takes no larger one

WIDEST = 65_536  # units of a layer: a configuration may come from a stranger, and is checked before it is built


def check_name(name: str) -> str:
    """The name, if it is one printable line that stays below the folder of runs."""
    if not name or not name.isprintable() or len(name) > 200:
        raise ValueError("must be one line of at most 200 printable characters")
    if name.startswith("/") or {"", ".", ".."} & {*name.split("/")}:
        raise ValueError("must be no path that leaves the folder of runs")
    return name


def check_text(text: str) -> str:
    """The text, if it is a line that a path can be: no control characters, no halves of characters."""
    if len(text) > 4000 or any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise ValueError("must be one line of text without control characters")
    return text


def known_method(name: str) -> str:
    """The name, if it is one of the table of methods."""
    METHODS.find(name)
    return name


Width = Annotated[int, Field(ge=1, le=WIDEST)]
Taps = Annotated[int, Field(ge=1, le=99)]


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Data(Settings):
    name: Annotated[str, AfterValidator(check_text)] = Field(
        "digits", description=f"{', '.join(DATA_SETS)}, or the path of your own images"
    )
    extra: bool = Field(True, description="SVHN: also train on the 531,131 extra images, as the paper does")
    size: tuple[int, int] | None = Field(None, description="own images: resize to height and width")
    binarise: Literal["dynamic", "static", "threshold", "none"] | None = Field(
        None,
        description="mnist: 0/1 pixels drawn at each visit, or once; own images: also cut at one half, or grey values kept",
    )


class Net(Settings):
    kind: Literal["pixelcnn", "mlp"] = Field("pixelcnn", description="residual encoder + gated PixelCNN, or two MLPs")
    latent: int = Field(32, ge=1, le=WIDEST, description="dimensions of z (paper: 32; SVHN 64)")
    channels: int = Field(32, ge=1, le=WIDEST, description="PixelCNN: channels of each layer (paper: 32)")
    kernels: tuple[Taps, ...] = Field(
        (9, 9, 9, 7, 7, 7, 5, 5, 5, 3, 3, 3), max_length=64, description="PixelCNN: one layer each (Kim et al.)"
    )
    encoder: tuple[Width, ...] = Field(
        (64, 64, 64), max_length=16, description="residual encoder: channels of its blocks (paper: 64)"
    )
    hidden: int = Field(200, ge=1, le=WIDEST, description="MLP: width of its two hidden layers (Burda et al.: 200)")


class SVISettings(Settings):
    steps: int = Field(
        9, ge=1, le=MOST, description="k; svi and iwae take k + 1, so that all methods see as many weights"
    )
    lr: float = Field(
        0.02, gt=0, le=MOST, description="paper's 1.0 over its batch of 50: the per-example form (SVI.from_paper)"
    )
    momentum: float = Field(0.5, ge=0, lt=1, description="paper's")
    max_grad_norm: float = Field(
        50**0.5, gt=0, le=LONGEST, description="paper's 1.0 in per-example form, for mean and log-variance each"
    )
    samples: int = Field(1, ge=1, le=10_000, description="Monte-Carlo draws per step (paper: 1)")
    closed_form_kl: bool = Field(
        False, description="step along the likelihood's sample and the closed-form KL, as Kim et al."
    )
    clip: Literal["example", "batch"] = Field(
        "example", description="batch: Kim et al.'s literal form, with lr 1 and norm 1"
    )


class EndToEndSettings(Settings):
    steps: int | None = Field(
        None, ge=1, le=MOST, description="k of the methods that are trained end to end (default: svi.steps)"
    )
    learned_rates: bool | None = Field(
        None, description="learn a rate for every step and coordinate of lambda (default: as the method says)"
    )
    rates_lr: float = Field(RATES_LR, gt=0, le=MOST, description="AMSGrad's rate for the logarithms of learned rates")
    finite_difference: bool = Field(
        False, description="second-order products by differences, for decoders that cannot be differentiated twice"
    )


class Optim(Settings):
    lr: float = Field(1e-3, gt=0, le=MOST, description="AMSGrad's rate (paper)")
    max_grad_norm: float = Field(
        5.0, gt=0, le=LONGEST, description="norm of phi's and theta's gradient together (paper)"
    )


class Anneal(Settings):
    start: float = Field(1.0, gt=0, le=1, description="beta of the first step (paper: 0.1 on Omniglot, else 1)")
    steps: int = Field(0, ge=0, le=LONGEST, description="steps until beta is 1 (paper: 5,000 on Omniglot, else 0)")


def parse_phases(text: str) -> list[tuple[str, int]]:
    """Methods and updates of ``vae:8000,bsvi-sir:2000``.

    >>> parse_phases("vae:8000,bsvi-sir:2000")
    [('vae', 8000), ('bsvi-sir', 2000)]
    """
    if not isinstance(text, str):
        raise TypeError("phases are a text")
    found: list[tuple[str, int]] = []
    for word in text.split(","):
        method, _, steps = word.strip().partition(":")
        if method not in METHODS or not re.fullmatch(r"[1-9]\d{0,8}", steps):
            raise ValueError(
                f"phases takes METHOD:UPDATES with commas, as vae:8000,bsvi-sir:2000, got {word[:80]!r}; "
                f"the methods: {', '.join(METHODS)}"
            )
        found.append((method, int(steps)))
    return found


def plain_phases(text: str) -> str:
    """The text without blanks, if it names phases."""
    return ",".join(f"{method}:{steps}" for method, steps in parse_phases(text))


class Experiment(Settings):
    """A data set, its networks, and how they are trained."""

    experiment: Annotated[str, AfterValidator(check_name)] = Field(
        "digits", description="the name under which runs are filed"
    )
    method: Annotated[str, AfterValidator(known_method)] = Field("bsvi-sir", description=", ".join(METHODS))
    phases: Annotated[str, AfterValidator(plain_phases)] | None = Field(
        None, description="methods in turn and their updates, vae:8000,bsvi-sir:2000, in place of method and steps"
    )
    seed: int = Field(0, ge=0, le=MOST_SEED, description="of weights, noise, order of examples and binarisation")
    data: Data = Data()
    net: Net = Net()
    svi: SVISettings = SVISettings()
    e2e: EndToEndSettings = EndToEndSettings()
    optim: Optim = Optim()
    anneal: Anneal = Anneal()
    batch_size: int = Field(50, ge=1, le=MOST, description="paper's")
    steps: int = Field(200_000, ge=1, le=LONGEST, description="updates at most (paper)")
    seconds: float | None = Field(
        None, gt=0, le=LONGEST, description="CPU seconds of updates at most (on a GPU wall clock); default: no limit"
    )
    valid_every: int = Field(1000, ge=1, le=LONGEST, description="steps between looks at the validation images")
    patience: int = Field(20, ge=0, le=LONGEST, description="stop after so many looks without a better bound; 0: never")
    log_every: int = Field(100, ge=1, le=LONGEST, description="steps between lines of metrics.jsonl")
    resampled: int = Field(1, ge=1, le=10_000, description="draws of q_SIR that train theta (paper: 1)")
    recompute: bool | None = Field(
        None, description="methods on all draws: run the decoder again, not keep k + 1 graphs"
    )

    @property
    def steps_of_refinement(self) -> int:
        """k of this experiment's method."""
        end_to_end = METHODS.find(self.method).end_to_end
        return (self.e2e.steps if end_to_end else None) or self.svi.steps

    def list_phases(self) -> "list[tuple[Experiment, int]]":
        """The experiment of each phase and its updates; one where there is one method."""
        found = parse_phases(self.phases) if self.phases else [(self.method, self.steps)]
        return [(self.model_copy(update={"method": method, "phases": None, "steps": n}), n) for method, n in found]

    @model_validator(mode="before")
    @classmethod
    def _end_with_the_last_phase(cls, values: Any) -> Any:
        try:
            phases = parse_phases(values["phases"])
        except (ValueError, TypeError, KeyError):  # none, or what the field itself will refuse
            return values
        return {**values, "method": phases[-1][0], "steps": sum(steps for _, steps in phases)}


_OMNIGLOT = Experiment(
    experiment="omniglot", data=Data(name="omniglot"), anneal=Anneal(start=0.1, steps=5000), recompute=True
)
_FASHION = Experiment(experiment="fashion-mnist", data=Data(name="fashion-mnist"), recompute=True)
_MNIST = Experiment(experiment="mnist", data=Data(name="mnist"), recompute=True)  # none of the paper's
_SVHN = Experiment(experiment="svhn", data=Data(name="svhn"), net=Net(latent=64), recompute=True)
_MLP = Net(kind="mlp", latent=50)
_SMALL = Net(channels=8, kernels=(5, 3, 3), encoder=(8, 16, 16))
_STEP = SVISettings(lr=0.1, max_grad_norm=1.0)
_CPU = {"svi": _STEP, "steps": 5000, "valid_every": 250, "patience": 8, "log_every": 50}


def _make_variant(base: Experiment, suffix: str, net: Net, **changes: Any) -> Experiment:
    """A CPU-sized copy of a paper's experiment: other networks, an SVI step chosen by results/svi_step, fewer updates."""
    anneal = base.anneal.model_copy(update={"steps": base.anneal.steps // 5})
    update = {"experiment": f"{base.experiment}-{suffix}", "net": net, "recompute": None, "anneal": anneal}
    return base.model_copy(update={**update, **_CPU, **changes})


def _make_experiments() -> dict[str, Experiment]:
    paper = [_OMNIGLOT, _FASHION, _SVHN, _MNIST]
    rates = {"omniglot": 3e-3, "mnist": 3e-3}  # grey pixels take no more than the paper's 1e-3: see results/README.md
    mlp = [_make_variant(base, "mlp", _MLP, optim=Optim(lr=rates.get(base.experiment, 1e-3))) for base in paper]
    small = [_make_variant(base, "small", _SMALL.model_copy(update={"latent": base.net.latent})) for base in paper]
    digits = Experiment(
        net=Net(latent=8, channels=8, kernels=(3, 3), encoder=(8, 16, 16)),
        svi=_STEP,
        steps=1000,
        valid_every=100,
        patience=0,
        log_every=20,
    )
    return {e.experiment: e for e in [digits, *paper, *mlp, *small]}


EXPERIMENTS = _make_experiments()
