"""AIS beside the other estimates of ``bsvi evaluate``: --ais."""

import argparse
from pathlib import Path
from typing import Any

from bsvi.commands.bar import Bar
from bsvi.commands.trained_run import choose_size, make_batches
from bsvi.experiments import batching


def choose_ais_batch(arguments: argparse.Namespace, trained: Any) -> int:
    return min(arguments.batch_size, choose_size(batching.count_ais_passes(), arguments, trained))


def ais_store_path(store: Path) -> Path:
    return store.with_name(store.name.replace("evaluation", "ais", 1))


def compare_with_ais(
    arguments: argparse.Namespace, trained: Any, split: Any, scores: Any, store: Path
) -> dict[str, Any]:
    """AIS as an independent judge of the log-likelihood: what the other estimates of the same images differ from it."""
    from bsvi.evaluation.ais import ais

    few = split.take(arguments.ais)
    with Bar(f"{trained.folder.name} AIS", len(few), arguments.quiet) as bar:
        annealed = ais(
            trained.model,
            make_batches(few, choose_ais_batch(arguments, trained), trained.device),
            seed=arguments.seed,
            store=store,
            progress=bar.update,
        )
    judge = annealed.log_likelihood
    print(f"  of the first {len(few)} images:\n    {'AIS':13} {judge}")
    beside: dict[str, Any] = {f"BSVI-{arguments.k}": scores.log_likelihood}
    beside |= {f"IWAE-{n}": score for n, score in scores.iwae.items()}
    differences = {name: score - judge for name, score in beside.items()}  # in pairs
    for name, difference in differences.items():
        print(f"    {name:13} {difference.mean + judge.mean:.2f}, minus AIS {difference}")
    for warning in annealed.warnings:
        print(f"    warning: {warning}")
    return {
        "images": len(few),
        "log_likelihood": judge.summary(),
        "minus_ais": {name: difference.summary() for name, difference in differences.items()},
        "warnings": list(annealed.warnings),
    }
