"""``bsvi gap RUN``: what the encoder loses: approximation and amortization gap, and the images on which it fails worst."""

import argparse
import json
from pathlib import Path

from bsvi.commands.evaluate import add_common, batches, prepare


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bsvi gap", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--k", type=int, default=500, help="draws of each q for its ELBO and for ln p(x) (default 500)")
    parser.add_argument("--steps", type=int, default=500, help="of the climb to each image's best q (default 500)")
    parser.add_argument("--examples", type=int, default=200, help="only the first N test images (default 200)")
    parser.add_argument("--worst", type=int, default=20, help="how many of the worst images to show (default 20)")
    add_common(parser)
    arguments = parser.parse_args(words)

    import torch

    from bsvi import pictures
    from bsvi.checkpoint import finite_or_none
    from bsvi.files import write_atomically
    from bsvi.gap import amortization_gap

    trained, split, progress, _ = prepare(arguments, "test")
    with progress:
        gap = amortization_gap(
            trained.model,
            batches(split, arguments, trained.device),
            steps=arguments.steps,
            k=arguments.k,
            seed=arguments.seed,
            store=trained.folder / "gap-test.jsonl",
            progress=progress.update,
        )
    print(f"{trained.folder} (test, {len(split)} images, step {trained.step})")
    print(gap)
    write_atomically(trained.folder / "gap.json", json.dumps(finite_or_none(gap.summary()), indent=1).encode())
    worst = gap.worst(min(arguments.worst, len(split)))
    at = torch.tensor([split.ids.tolist().index(i) for i in worst])
    sheet = pictures.write(trained.folder / "gap-worst", split.grey(at)[None])
    print(f"  worst images (ids {', '.join(map(str, worst[:10]))}): {sheet}")
    return 0
