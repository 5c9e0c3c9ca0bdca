"""The small files of a folder of runs, and their report: what goes into results/.

    ./run python benchmarks/publish.py runs/omniglot-mlp results/omniglot-mlp --command "bsvi sweep omniglot-mlp ..."

Per run: config.json, result.json, scores.json and log.txt as they are; of scores-*.npz the paper's scores rounded to 0.01
nats (the mean of thousands moves by less than 0.001); at most 60 lines of training metrics, all lines of validation. They are run
folders still: ``bsvi report results/omniglot-mlp/runs`` makes the page again. Beside them: the page, its tables and PNG
figures, and about.json with the command, the data's hash and the time it took. Runs without a result are left out and named.
``--tables``: tables of scores and times alone, for runs that are no comparison of methods.

    ./run python benchmarks/publish.py results/omniglot-mlp/runs results/omniglot-mlp

makes only the report again, from what is published: after a change of the report itself.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

LINES = 60
KEPT = ("log_likelihood", "elbo", "kl", "reconstruction", "iwae_500", "iwae_2500")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--command", action="append", default=[], help="how the runs were made; may be given several times"
    )
    parser.add_argument("--tables", action="store_true", help="no page, figures or claims")
    arguments = parser.parse_args()
    folders = sorted(path.parent for path in arguments.runs.glob("*/config.json"))
    finished = [folder for folder in folders if (folder / "result.json").exists()]
    if not finished:
        sys.exit(f"{arguments.runs} holds no finished run")
    if arguments.runs.resolve() == (arguments.out / "runs").resolve():
        report(arguments.out, arguments.tables)
        return
    for folder in finished:
        thin(folder, arguments.out / "runs" / folder.name)
    about = {
        "commands": [*arguments.command, f"bsvi report {arguments.out}/runs -o {arguments.out}"],
        "data": [*{(data := config(folder)["data"])["name"]: data for folder in finished}.values()],
        "git": sorted({str(config(folder)["git"]) for folder in finished}),
        "versions": config(finished[0])["versions"],
        "runs": len(finished),
        "left_out_unfinished": [folder.name for folder in folders if folder not in finished],
        "training_minutes": round(sum(read(folder / "result.json")["seconds"] for folder in finished) / 60, 1),
        "evaluation_minutes": round(sum(map(evaluation_seconds, finished)) / 60, 1),
    }
    (arguments.out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    report(arguments.out, arguments.tables)


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
    for name in ("config.json", "result.json", "scores.json", "log.txt"):
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)
    for path in folder.glob("scores-*.npz"):
        with np.load(path) as arrays:
            kept = {name: arrays[name].astype(np.float32).round(2) for name in KEPT if name in arrays.files}
            np.savez_compressed(out / path.name, ids=arrays["ids"].astype(np.int32), **kept)
    texts = (folder / "metrics.jsonl").read_text().splitlines()
    train = [text for text in texts if read_line(text).get("split") == "train"]
    every = math.ceil(len(train) / LINES)
    kept_lines = set(train[every - 1 :: every])
    (out / "metrics.jsonl").write_text(
        "".join(rounded(text) for text in texts if text in kept_lines or read_line(text).get("split") == "valid")
    )
    for path in (folder / "samples" / name for name in ("latents.png", "prior.png")):
        if path.exists():
            (out / "samples").mkdir(exist_ok=True)
            shutil.copy(path, out / "samples" / path.name)


def read_line(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def rounded(text: str) -> str:
    line = {name: round(value, 4) if isinstance(value, float) else value for name, value in read_line(text).items()}
    return json.dumps(line) + "\n"


def report(out: Path, tables: bool) -> None:
    """The page, tables and PNG figures, from the thinned runs: what a reader can repeat."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "bsvi", "report", str(out / "runs"), "-o", place], check=True)
        for name in ("index.html", "tables", "figures"):
            if (out / name).is_dir():
                shutil.rmtree(out / name)
            (out / name).unlink(missing_ok=True)
            if name == "tables" or not tables:
                shutil.move(str(Path(place) / name), out / name)
    unwanted = ["figures/*.pdf", *(["tables/*claims*", "tables/*differences*"] if tables else [])]
    for path in (path for pattern in unwanted for path in out.glob(pattern)):
        path.unlink()


if __name__ == "__main__":
    main()
