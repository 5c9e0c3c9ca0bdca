"""The estimators of ln p(x), one row each; flags, tables and docs read this. Loads no torch.

Each is a lower bound on ln p(x) in expectation. BSVI-k and IWAE-n come with every evaluation; the others have a function.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Estimator:
    """How ln p(x) is estimated, and what that assumes."""

    title: str  # with {n} for its size: k, draws or passes
    assumes: str
    home: str = ""  # module of its function, of the same name, where it is asked for by name
    by_passes: bool = False  # whether the function takes a number of passes

    def name(self, passes: int) -> str:
        """The key of its result: the same estimator with other passes is another estimate."""
        return self.title.format(n=passes)

    def run(self, model: Any, batches: Any, passes: int, **options: Any) -> Any:
        """``Annealed`` of every example."""
        function = getattr(import_module(f"bsvi.evaluation.{self.home}"), self.home)
        return function(model, batches, **({"passes": passes} if self.by_passes else {}), **options)


ESTIMATORS = {
    "bsvi": Estimator("BSVI-{n}", "that some q on the walk of SVI covers the posterior"),
    "iwae": Estimator("IWAE-{n}", "that the encoder's own q covers the posterior"),
    "refine-anneal": Estimator(
        "refine-anneal-{n}", "that the posterior can be reached from a Gaussian fitted to it", "refine_anneal", True
    ),
    "ais": Estimator("ais", "that chains find the posterior from the prior; nothing of the encoder", "ais"),
}
FURTHER = tuple(name for name, estimator in ESTIMATORS.items() if estimator.home)  # what --estimator takes


def check_estimators(names: Any) -> list[str]:
    """The names as a list, each once; ValueError for one that is not in the table."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in FURTHER:
            raise ValueError(f"no estimator {name!r}; beside BSVI-k and IWAE there are {', '.join(FURTHER)}")
    return list(dict.fromkeys(names))
