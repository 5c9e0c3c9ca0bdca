"""Scores: what evaluate() returns, numbers one can publish, and the files they live in."""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bsvi.evaluation.per_example import PerExample, Score, column
from bsvi.system.arrays import read_arrays
from bsvi.system.files import write_atomically
from bsvi.system.reading import read_json


@dataclass(frozen=True, eq=False, kw_only=True)
class Scores(PerExample):
    """What ``bsvi.evaluate`` returns; signs as in the paper's tables, ELBO* = -(Reconstruction* + KL*).

    columns      by their names in the npz file: the scores below, ESS and k-hat
    diagnostics  effective sample sizes, and the share of examples with k-hat above 0.7 per estimator
    estimates    further estimators of ln p(x) by name, such as refine-anneal-1000, each a ``Score``
    """

    k: int
    seed: int
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    about_estimates: Mapping[str, Any] = field(default_factory=dict)  # cost, diagnostics and warnings of each

    log_likelihood = column("log_likelihood", "BSVI-k with the uniform buffer weight 1 / (k + 1).")
    elbo = column("elbo", "ELBO*, that of the last proposal q_k: SVI-k.")
    kl = column("kl", "KL*, KL(q_k || prior), in closed form where one is known.")
    reconstruction = column("reconstruction", "Reconstruction*, -E ln p(x|z) under q_k.")
    amortized_elbo = column("amortized_elbo", "The encoder's own ELBO: SVI-0.")

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
            return cls(
                k=entry["k"],
                seed=entry["seed"],
                ids=ids,
                columns=columns,
                diagnostics=entry["diagnostics"],
                warnings=tuple(entry["warnings"]),
                seconds=entry["seconds"],
                about_estimates=entry.get("estimates", {}),
            )
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
