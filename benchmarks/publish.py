"""A folder of runs in the few files of results/NAME: the runs in one archive, and the report that is made from it.

    ./run python benchmarks/publish.py results/omniglot-mlp --runs runs/omniglot-mlp --command "bsvi sweep omniglot-mlp ..."

writes runs.tar.xz (bsvi/report/archive.py) with the small copy of each finished run: config.json, result.json, scores.json,
gap.json and log.txt as they are; of scores-*.npz the paper's scores rounded to 0.01 nats (the mean of thousands moves by less
than 0.001), without ELBO*, which is -KL* - Reconstruction*; at most 60 lines of training metrics, all lines of validation.
about.json has the command, the data's hash, the time it took, and names runs without a result, which are left out.
``--tables``: tables of scores and times alone, for runs that are no comparison of methods. The page has all figures in it;
``--figures`` names those that are wanted as files too, for other pages to show.

    ./run python benchmarks/publish.py results/omniglot-mlp

makes the report again from the archive: index.html, tables.md and figures/*.png, as about.json says. For tables as CSV and
LaTeX, figures as PDF: ``tar -xf results/omniglot-mlp/runs.tar.xz -C FOLDER``, then ``bsvi report FOLDER``.
"""

import argparse
import contextlib
import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bsvi.report import archive, make_report

LINES = 60
KEPT = ("log_likelihood", "kl", "reconstruction", "iwae_500", "iwae_2500")
COPIED = ("config.json", "result.json", "scores.json", "gap.json", "log.txt", "samples/latents.png")
KINDS = ("claims", "scores", "estimates", "differences", "iwae", "cost", "runs")  # of tables, in the order of the page
DRAWN = ("progress", "differences", "rate-distortion", "curves", "svi-gain", "buffer-gain", "buffer-weight", "latent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="results/NAME")
    parser.add_argument("--runs", type=Path, help="the runs to publish; without it only the report is made again")
    parser.add_argument(
        "--command", action="append", default=[], help="how the runs were made; may be given several times"
    )
    parser.add_argument("--tables", action="store_true", help="no page and no claims")
    parser.add_argument("--claims", action="store_true", help="with --tables: claims and differences all the same")
    parser.add_argument("--figures", nargs="+", choices=DRAWN, default=[], help="figures to keep as files")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        shown = {"page": not arguments.tables, "figures": arguments.figures}
        shown |= {"claims": True} if arguments.claims else {}
        publish(arguments.runs, arguments.out, arguments.command, shown)
    elif not (arguments.out / archive.NAME).exists():
        sys.exit(f"{arguments.out} holds no {archive.NAME}; publish runs there with --runs")
    report(arguments.out)


def publish(runs: Path, out: Path, commands: list[str], shown: dict[str, Any]) -> None:
    """Write the archive and about.json; ``shown`` says what the report shows of them."""
    folders = sorted(path.parent for path in runs.glob("*/config.json"))
    finished = [folder for folder in folders if (folder / "result.json").exists()]
    if not finished:
        sys.exit(f"{runs} holds no finished run")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for folder in finished:
            thin(folder, Path(place) / folder.name)
        archive.pack(Path(place), out / archive.NAME)
    about = {
        "commands": [*commands, f"./run python benchmarks/publish.py results/{out.name}"],
        "shown": shown,
        "data": [*{(data := config(folder)["data"])["name"]: data for folder in finished}.values()],
        "git": sorted({str(config(folder)["git"]) for folder in finished}),
        "versions": config(finished[0])["versions"],
        "runs": len(finished),
        "left_out_unfinished": [folder.name for folder in folders if folder not in finished],
        "training_minutes": round(sum(read(folder / "result.json")["seconds"] for folder in finished) / 60, 1),
        "evaluation_minutes": round(sum(map(evaluation_seconds, finished)) / 60, 1),
    }
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def config(folder: Path) -> Any:
    return read(folder / "config.json")


def evaluation_seconds(folder: Path) -> float:
    path = folder / "scores.json"
    return sum(scores["seconds"] for scores in read(path).values()) if path.exists() else 0.0


def thin(folder: Path, out: Path) -> None:
    """The small copy of one run folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (folder / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, out / name)
    if (out / "log.txt").exists():  # it names folders of this machine
        text = (out / "log.txt").read_text()
        (out / "log.txt").write_text(re.sub(r"(?<!\S)/(?:[^\s/:]+/)+", "runs/", text))
    for path in folder.glob("scores-*.npz"):
        with np.load(path) as arrays:
            kept = {name: arrays[name].astype(np.float32).round(2) for name in KEPT if name in arrays.files}
            np.savez(out / path.name, ids=arrays["ids"].astype(np.int32), **kept)  # the archive compresses
    texts = (folder / "metrics.jsonl").read_text().splitlines()
    train = [text for text in texts if read_line(text).get("split") == "train"]
    every = math.ceil(len(train) / LINES)
    kept_lines = set(train[every - 1 :: every])
    (out / "metrics.jsonl").write_text(
        "".join(rounded(text) for text in texts if text in kept_lines or read_line(text).get("split") == "valid")
    )


def read_line(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def rounded(text: str) -> str:
    line = {name: round(value, 4) if isinstance(value, float) else value for name, value in read_line(text).items()}
    return json.dumps(line) + "\n"


def report(out: Path) -> None:
    """Write the page, the tables and the figures that about.json names, from the archive: what a reader can repeat."""
    shown = read(out / "about.json")["shown"]
    with archive.open_archive(out) as runs:
        with contextlib.chdir(runs.parent):  # so that the tables name the run folders as runs/...
            made = make_report([Path(runs.name)], Path("report")).absolute().parent
        if shown["page"]:
            shutil.copyfile(made / "index.html", out / "index.html")
        (out / "tables.md").write_text(joined(made / "tables", out.name, claims=has_claims(shown)))
        shutil.rmtree(out / "figures", ignore_errors=True)
        for path in sorted(path for name in shown["figures"] for path in made.glob(f"figures/*-{name}.png")):
            (out / "figures").mkdir(exist_ok=True)
            picture = Image.open(path).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            picture.save(out / "figures" / path.name, optimize=True)  # a third of the bytes


def has_claims(shown: dict[str, Any]) -> bool:
    """Whether the tables compare methods: where there is a page, and where it was asked for."""
    return bool(shown["page"] or shown.get("claims"))


def joined(tables: Path, name: str, claims: bool = True) -> str:
    """The Markdown tables of a report on one page, each under its name; ``claims``: with those that compare methods."""
    kinds = [kind for kind in KINDS if claims or kind not in ("claims", "differences")]
    found = {path: re.fullmatch(rf"(.+)-({'|'.join(kinds)})(-\w+)?", path.stem) for path in sorted(tables.glob("*.md"))}
    known = sorted((match[1], kinds.index(match[2]), path) for path, match in found.items() if match)
    about = f"Made from {archive.NAME} by `./run python benchmarks/publish.py results/{name}`."
    parts = [f"# Tables of {name}\n\n{about}\n", *(f"## {path.stem}\n\n{path.read_text()}" for *_, path in known)]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
