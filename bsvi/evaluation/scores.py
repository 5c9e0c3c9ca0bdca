"""Numbers one can publish: a score per example, its mean with standard error and interval, and the files they live in."""

import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import ndtr, stdtrit

from bsvi.system.arrays import read_arrays
from bsvi.system.files import write_atomically
from bsvi.system.reading import read_json

_RESAMPLES = 2000
_FEWEST = 8  # examples for a bootstrap: of fewer, resamples are too much alike
_AT_ONCE = 1 << 20  # numbers resampled at a time: the memory of a bootstrap does not grow with the data


@dataclass(frozen=True, eq=False)
class Score:
    """One number per example; ``mean`` over examples, its ``stderr``, and a 95% interval ``low``, ``high``.

    ``a - b`` is the score of the differences on the examples that both have: how two methods are compared.

    >>> score = Score(np.array([-3.0, -1.0, -2.0, -2.0]), np.arange(4))
    >>> score.mean, round(score.stderr, 3), score.low < score.mean < score.high
    (-2.0, 0.408, True)
    """

    per_example: Float64[np.ndarray, " examples"]
    ids: Int64[np.ndarray, " examples"]

    @cached_property
    def mean(self) -> float:
        return float(self.per_example.mean())

    @cached_property
    def stderr(self) -> float:
        """sd / sqrt(n); NaN for one example or for values that are not finite."""
        n = len(self.per_example)
        return float(self.per_example.std(ddof=1) / math.sqrt(n)) if n > 1 and self._finite else math.nan

    @property
    def low(self) -> float:
        return self._interval[0]

    @property
    def high(self) -> float:
        return self._interval[1]

    @cached_property
    def _finite(self) -> bool:
        return bool(np.isfinite(self.per_example).all())

    @cached_property
    def _interval(self) -> tuple[float, float]:
        """The 2.5% and 97.5% points of the mean of examples drawn with replacement, with a fixed seed; Student's below 8.

        Both points are moved out a little, as Student's t is wider than the normal and n - 1 smaller than n (Hesterberg, 2015):
        plain points hold the truth too rarely where there are few examples.
        """
        n = len(self.per_example)
        if n < 2 or not self._finite:
            return math.nan, math.nan
        if n < _FEWEST:
            half = -float(stdtrit(n - 1, 0.025)) * self.stderr
            return self.mean - half, self.mean + half
        rng, rows = np.random.default_rng(n), max(1, _AT_ONCE // n)
        sizes = [min(rows, _RESAMPLES - at) for at in range(0, _RESAMPLES, rows)]
        means = [self.per_example[rng.integers(0, n, (size, n))].mean(1) for size in sizes]
        outside = ndtr(stdtrit(n - 1, 0.025) * math.sqrt(n / (n - 1)))
        low, high = np.quantile(np.concatenate(means), [outside, 1 - outside])
        return float(low), float(high)

    def summary(self) -> dict[str, float | None]:
        """mean, stderr, low and high; None, JSON's null, for what is not finite."""
        return {name: _json_number(getattr(self, name)) for name in ("mean", "stderr", "low", "high")}

    def __sub__(self, other: "Score") -> "Score":
        ids, mine, theirs = np.intersect1d(self.ids, other.ids, assume_unique=True, return_indices=True)
        if not len(ids):
            raise ValueError("the two scores have no example in common, so there are no pairs to compare")
        return Score(self.per_example[mine] - other.per_example[theirs], ids)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.stderr:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, eq=False)
class Scores:
    """What ``bsvi.evaluate`` returns; signs as in the paper's tables, ELBO* = -(Reconstruction* + KL*).

    columns      every number per example by its name in the npz file: the scores below, ESS and k-hat
    diagnostics  effective sample sizes, and the share of examples with k-hat above 0.7 per estimator
    warnings     one line each: what should not be trusted, and what to try
    estimates    further estimators of ln p(x) by name, such as refine-anneal-1000, each a ``Score``
    """

    k: int
    seed: int
    ids: Int64[np.ndarray, " examples"]
    columns: Mapping[str, Float64[np.ndarray, " examples"]]
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    about_estimates: Mapping[str, Any] = field(default_factory=dict)  # cost, diagnostics and warnings of each

    def __getitem__(self, name: str) -> Score:
        if name not in self.columns:
            raise KeyError(f"no score {name!r}; there are {', '.join(self.columns)}")
        return Score(self.columns[name], self.ids)

    @cached_property
    def log_likelihood(self) -> Score:
        """BSVI-k with the uniform buffer weight 1 / (k + 1)."""
        return self["log_likelihood"]

    @cached_property
    def elbo(self) -> Score:
        """ELBO*, that of the last proposal q_k: SVI-k."""
        return self["elbo"]

    @cached_property
    def kl(self) -> Score:
        """KL*, KL(q_k || prior), in closed form where one is known."""
        return self["kl"]

    @cached_property
    def reconstruction(self) -> Score:
        """Reconstruction*, -E ln p(x|z) under q_k."""
        return self["reconstruction"]

    @cached_property
    def amortized_elbo(self) -> Score:
        """The encoder's own ELBO: SVI-0."""
        return self["amortized_elbo"]

    @cached_property
    def iwae(self) -> dict[int, Score]:
        """IWAE-n for every n that was asked for."""
        names = (name.removeprefix("iwae_") for name in self.columns if name.startswith("iwae_"))
        return {int(n): self[f"iwae_{n}"] for n in names if n.isdigit()}

    @cached_property
    def estimates(self) -> dict[str, Score]:
        return {name: Score(*_present(self.columns[_column(name)], self.ids)) for name in self.about_estimates}

    def with_estimate(self, name: str, annealed: Any) -> "Scores":
        """These scores and those of a further estimator, of the same examples or some of them."""
        score = annealed.log_likelihood
        column = np.full(len(self.ids), np.nan)
        _, mine, theirs = np.intersect1d(self.ids, score.ids, assume_unique=True, return_indices=True)
        column[mine] = score.per_example[theirs]
        about = {
            "images": len(score.ids),
            "passes": annealed.passes,
            "seconds": round(annealed.seconds, 3),
            **score.summary(),
            "minus_bsvi": (score - self.log_likelihood).summary(),
            "diagnostics": annealed.diagnostics(),
            "warnings": list(annealed.warnings),
        }
        return replace(
            self,
            columns={**self.columns, _column(name): column},
            about_estimates={**self.about_estimates, name: about},
            warnings=(*self.warnings, *annealed.warnings),
        )

    def summary(self, **extra: Any) -> dict[str, Any]:
        """The split's entry in scores.json; ``extra`` adds fields such as data_sha256 and checkpoint_step."""
        plain = ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo")
        return {
            "k": self.k,
            "examples": len(self.ids),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            **extra,
            **{name: self[name].summary() for name in plain},
            "iwae": {str(n): score.summary() for n, score in self.iwae.items()},
            **({"estimates": dict(self.about_estimates)} if self.about_estimates else {}),
            "diagnostics": dict(self.diagnostics),
            "warnings": list(self.warnings),
        }

    def save(self, folder: str | os.PathLike[str], split: str = "test", **extra: Any) -> None:
        """Write scores-SPLIT.npz, and the split's entry of scores.json; other splits' entries stay."""
        folder = Path(folder)
        try:
            write_atomically(folder / f"scores-{split}.npz", pack_arrays({"ids": self.ids, **self.columns}))
            entries = {**_read_json(folder / "scores.json"), split: self.summary(**extra)}
            write_atomically(folder / "scores.json", json.dumps(entries, indent=1, allow_nan=False).encode())
        except OSError as error:
            raise OSError(f"cannot write scores to {folder}: {error.strerror or error}; name another folder") from None

    @classmethod
    def load(cls, folder: str | os.PathLike[str], split: str = "test") -> "Scores":
        """What ``save`` wrote."""
        folder = Path(folder)
        entry = _read_json(folder / "scores.json").get(split)
        if entry is None:
            raise FileNotFoundError(f"{folder} has no scores of the split {split!r}; run evaluate for it first")
        try:
            columns = read_arrays(folder / f"scores-{split}.npz")
            ids = columns.pop("ids")
            known = (entry["k"], entry["seed"], ids, columns, entry["diagnostics"])
            return cls(*known, tuple(entry["warnings"]), entry["seconds"], entry.get("estimates", {}))
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = type(error).__name__
            raise ValueError(f"{folder}: the scores of {split!r} are damaged ({reason}); evaluate again") from None


def _column(name: str) -> str:
    """Where an estimator's numbers are in the npz file."""
    return name.replace("-", "_")


def _present(values: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the examples that an estimator did not see."""
    seen = ~np.isnan(values)
    return values[seen], ids[seen]


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (it is no JSON object); remove it and evaluate again")
    return content


def pack_arrays(arrays: dict[str, Any]) -> bytes:
    """The bytes of an npz file."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
