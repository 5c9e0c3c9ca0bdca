"""The estimators of ln p(x), one row each; flags, tables and docs read this. Imports no torch.

Each is a lower bound on ln p(x) in expectation. BSVI-k and IWAE-n come with every evaluation; the others have a function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bsvi.tables.table import Table, later

_count_passes = later("bsvi.experiments.batching:count_annealed_passes")


@dataclass(frozen=True)
class Estimator:
    """How ln p(x) is estimated, and what that assumes.

    title      with {n} for its size: k, draws or passes; it is also the key of its result
    assumes    when the bound is tight
    function   called as ``function(model, batches, seed=, store=, progress=, ...)``, it returns what ``bsvi.ais`` returns;
               None: it comes with every evaluation
    by_passes  whether the function also takes ``passes=``, how often the decoder may be called for one example
    cost       passes that an example takes, of those asked for; the size of a batch is chosen by it
    """

    title: str
    assumes: str
    function: Callable[..., Any] | None = None
    by_passes: bool = False
    cost: Callable[[int], int] = _count_passes

    def name(self, passes: int) -> str:
        """The key of its result: the same estimator with other passes is another estimate."""
        return self.title.format(n=passes)

    def run(self, model: Any, batches: Any, passes: int, **options: Any) -> Any:
        """``Annealed`` of every example."""
        if self.function is None:
            raise ValueError(f"{self.title} comes with every evaluation; ask for another estimator")
        return self.function(model, batches, **({"passes": passes} if self.by_passes else {}), **options)


ESTIMATORS: Table[Estimator] = Table(
    "estimator",
    {
        "bsvi": Estimator("BSVI-{n}", "that some q on the walk of SVI covers the posterior"),
        "iwae": Estimator("IWAE-{n}", "that the encoder's own q covers the posterior"),
        "refine-anneal": Estimator(
            title="refine-anneal-{n}",
            assumes="that the posterior can be reached from a Gaussian fitted to it",
            function=later("bsvi.evaluation.refine_anneal:refine_anneal"),
            by_passes=True,
        ),
        "ais": Estimator(
            title="ais",
            assumes="that chains find the posterior from the prior; nothing of the encoder",
            function=later("bsvi.evaluation.ais:ais"),
            cost=lambda passes: int(later("bsvi.experiments.batching:count_ais_passes")()),
        ),
    },
)


def list_further() -> tuple[str, ...]:
    """What --estimator takes: those that do not come with every evaluation.

    >>> list_further()[:2]
    ('refine-anneal', 'ais')
    """
    return tuple(name for name, row in ESTIMATORS.items() if row.function is not None)


def check_estimators(names: Any) -> list[str]:
    """The names as a list, each once; ValueError for one that is not in the table."""
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in list_further():
            raise ValueError(f"no estimator {name!r}; beside BSVI-k and IWAE there are {', '.join(list_further())}")
    return list(dict.fromkeys(names))
