"""``bsvi evaluate RUN``: log-likelihood (BSVI-k), ELBO*, KL*, Reconstruction*, IWAE, each with its error. Resumable."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from bsvi.commands import evaluate_estimators as estimators
from bsvi.commands.bar import Bar
from bsvi.commands.evaluate_ais import ais_store_path, choose_ais_batch, compare_with_ais
from bsvi.commands.evaluate_shares import find_share, run_shares, share_batches, wait_for_all
from bsvi.commands.trained_run import add_common, choose_size, make_batches, prepare, print_start
from bsvi.experiments import batching
from bsvi.report.estimates import say_which
from bsvi.runs import results
from bsvi.runs.store import share_path
from bsvi.system.terminal import Parser
from bsvi.tables.estimators import ESTIMATORS
from bsvi.training.team import Rank, end_process, find_rank


def main(words: list[str]) -> int:
    parser = Parser(prog="bsvi evaluate", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--k", type=int, default=500, help="SVI steps (default 500, as the paper): k + 1 weights")
    parser.add_argument("--split", choices=("test", "valid", "train"), default="test")
    parser.add_argument("--examples", type=int, help="only the first N images of the split")
    parser.add_argument(
        "--iwae", type=int, nargs="*", help="numbers of IWAE draws (default k 2k 3k 4k 5k; none: --iwae)"
    )
    parser.add_argument("--ais", type=int, default=0, metavar="N", help="also judge the first N images by AIS (slow)")
    estimators.add_flags(parser)
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="share the images among N processes here")
    parser.add_argument(
        "--share",
        metavar="I/N",
        help="do part I of N only, on any machine that sees RUN; the table comes without --share",
    )
    add_common(parser)
    arguments = parser.parse_args(words)
    place = find_rank()
    return end_process(place, evaluate_at(place, arguments, words))


def evaluate_at(place: Rank | None, arguments: argparse.Namespace, words: list[str]) -> int:
    """All of it, or a share and then what is left; returns the exit code."""
    share = find_share(arguments.share, arguments.processes, place)
    with wait_for_all(place) as wait:
        draws = 5 * arguments.k if arguments.iwae is None else max(arguments.iwae, default=0)
        costs = lambda svi: batching.count_evaluate_passes(arguments.k, draws, svi.samples)  # noqa: E731
        trained, split, progress, svi = prepare(arguments, arguments.split, costs)
        store = trained.folder / name_store(arguments, trained)
        if share is not None:
            do_share(arguments, trained, split, svi, share, store)
            wait()
        if arguments.share is not None or (place is not None and place.rank > 0):
            return 0
        if arguments.processes > 1:
            with progress:
                run_shares(words, arguments, store, len(split), progress)
        return print_scores(arguments, trained, split, svi, store, Bar(progress.title, len(split), arguments.quiet))


def do_share(
    arguments: argparse.Namespace, trained: Any, split: Any, svi: Any, share: tuple[int, int], store: Path
) -> None:
    """Evaluate this process's share of the images into the file of this share."""
    from bsvi.evaluation.ais import ais
    from bsvi.evaluation.evaluate import evaluate

    quiet = arguments.quiet or share[0] > 1
    mine: Any = share_batches(split, arguments.batch_size, share, trained.device)
    title = f"{trained.folder.name} {arguments.split}, part {share[0]} of {share[1]}"
    if mine != []:
        with Bar(title, len(split) // share[1], quiet) as bar:
            options = {"k": arguments.k, "svi": svi, "iwae": arguments.iwae, "seed": arguments.seed}
            evaluate(trained.inference, mine, store=share_path(store, *share), progress=bar.update, **options)
    size = choose_ais_batch(arguments, trained)
    few = share_batches(split.take(arguments.ais), size, share, trained.device) if arguments.ais else []
    if few != []:
        ais(trained.model, few, seed=arguments.seed, store=share_path(ais_store_path(store), *share))
    for name in arguments.estimator:
        size = choose_estimator_batch(name, arguments, trained)
        mine = share_batches(split, size, share, trained.device)
        path = share_path(find_estimator_store(name, arguments, trained), *share)
        if mine != []:
            with Bar(f"{title}, {name}", len(split) // share[1], quiet) as bar:
                estimators.estimate(name, arguments, trained, mine, path, bar.update)


def print_scores(arguments: argparse.Namespace, trained: Any, split: Any, svi: Any, store: Path, progress: Bar) -> int:
    """Evaluate what is not in the store yet; keep and print the numbers."""
    from bsvi.evaluation.evaluate import evaluate

    results.read_entry(trained.folder / "scores.json")  # what is damaged is told before the work, not after it
    with progress:
        scores = evaluate(
            trained.inference,
            make_batches(split, arguments.batch_size, trained.device),
            k=arguments.k,
            svi=svi,
            iwae=arguments.iwae,
            seed=arguments.seed,
            store=store,
            progress=progress.update,
        )
    about = {"data_sha256": trained.about["data"]["sha256"], "checkpoint_step": trained.step, "images": len(split)}
    about |= {"trained_steps": trained.steps} if trained.steps else {}
    own, best = keep_result(trained.folder, arguments.split, scores, about)
    print(f"{trained.folder} ({arguments.split}, {len(split)} images, k = {arguments.k}, step {trained.step})")
    print_start(trained)
    for name in ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo"):
        print(f"  {name:15} {scores[name]}")
    for count, score in scores.iwae.items():
        print(f"  {f'IWAE-{count}':15} {score}")
    if arguments.ais:
        judged = compare_with_ais(arguments, trained, split, scores, ais_store_path(store))
        own, best = keep_result(trained.folder, arguments.split, scores, {**about, "ais": judged})
    for name in arguments.estimator:
        scores = scores.with_estimate(*run_estimator(name, arguments, trained, split))
        own, best = keep_result(trained.folder, arguments.split, scores, about)
    if arguments.certify:
        about["certificate"] = estimators.certify(arguments, trained, split)
        own, best = keep_result(trained.folder, arguments.split, scores, about)
    for warning in scores.warnings:
        print(f"  warning: {warning}")
    if arguments.estimator or arguments.certify:
        print(f"  {say_which(results.read_entry(own))}")
    print(f"  per example: {own.with_suffix('.npz')}")
    if own.name != results.make_name("evaluation", arguments.split, best):
        print(f"  kept beside another result: scores.json and the report stay with {results.describe_entry(best)}")
    return 0


def keep_result(folder: Path, split: str, scores: Any, about: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Keep the scores in files of their own, and in scores.json where they are the best of this split."""
    from bsvi.evaluation.scores import pack_arrays

    arrays = pack_arrays({"ids": scores.ids, **scores.columns})
    return results.keep_scores(folder, split, scores.summary(**about), arrays)


def name_store(arguments: argparse.Namespace, trained: Any) -> str:
    """Where finished images are kept: another question, or another model, has another file."""
    question = repr((arguments.seed, arguments.iwae, trained.experiment.svi)).encode()
    return f"evaluation-{arguments.split}-step{trained.step}-k{arguments.k}-{hashlib.sha256(question).hexdigest()[:8]}.jsonl"


def choose_estimator_batch(name: str, arguments: argparse.Namespace, trained: Any) -> int:
    return min(arguments.batch_size, choose_size(estimators.count_passes(name, arguments), arguments, trained))


def find_estimator_store(name: str, arguments: argparse.Namespace, trained: Any) -> Path:
    return estimators.store_path(arguments, trained, ESTIMATORS[name].name(arguments.passes))


def run_estimator(name: str, arguments: argparse.Namespace, trained: Any, split: Any) -> tuple[str, Any]:
    """A further estimator's key and its numbers, printed."""
    key, size = ESTIMATORS[name].name(arguments.passes), choose_estimator_batch(name, arguments, trained)
    with Bar(f"{trained.folder.name} {key}", len(split), arguments.quiet) as bar:
        data = make_batches(split, size, trained.device)
        annealed = estimators.estimate(
            name, arguments, trained, data, find_estimator_store(name, arguments, trained), bar.update
        )
    print(f"  {key:15} {annealed.log_likelihood} ({annealed.passes:,} passes an image)")
    return key, annealed
