"""What results/ shows is what its run folders give, with all that one needs to make them again."""

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks import claims
from bsvi.report.experiments import group
from bsvi.report.run_tables import cost_table
from bsvi.report.runs import read_runs
from bsvi.report.tables import scores_table
from tests.report.made_runs import make_run

RESULTS = Path(__file__).parent.parent / "results"
PUBLISHED = sorted(path.parent for path in RESULTS.glob("*/about.json"))


def cells(text):
    """The rows of a markdown table."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_tables_are_those_of_the_published_runs(folder):
    runs, warnings = read_runs([folder / "runs"])
    assert runs and not warnings and all(run.state == "scored" for run in runs)
    for experiment in group(runs):
        for table in (scores_table(experiment, "test"), cost_table(experiment)):
            made = [[re.sub(r"\*", "", cell.text) for cell in row] for row in table.rows]
            shown = cells((folder / "tables" / f"{table.name}.md").read_text().replace("*", "").replace("\\", ""))[2:]
            assert shown == made, table.name


def test_the_table_of_claims_is_that_of_the_published_runs():
    assert (RESULTS / "claims.md").read_text() == claims.table(RESULTS)
    assert (RESULTS / "judge.md").read_text() == claims.judge(RESULTS) and "AIS" in claims.judge(RESULTS)


def test_what_is_said_of_the_pixelcnn_is_what_its_tables_say():
    said = (RESULTS / "README.md").read_text().split("## Omniglot, small gated PixelCNN")[1].split("\n## ")[0]
    tables = (RESULTS / "omniglot-small" / "tables" / "omniglot-small-claims.md").read_text()
    figures = re.findall(r"\d+\.\d\d", said)
    assert len(figures) > 15 and set(figures) <= set(re.findall(r"\d+\.\d\d", tables))
    assert "reversed" in said and "less than half" in said and "Two seeds show no claim" in said
    assert "holds" not in {cell[2].split(" (")[0] for cell in cells(tables)[2:]}


def test_the_table_of_claims_names_fewer_seeds_and_runs_that_were_left_out(tmp_path):
    for method in ("vae", "svi", "bsvi"):
        for seed in (0, 1, 2) if method != "bsvi" else (0, 1):
            folder = make_run(tmp_path / "made", method, seed, experiment="omniglot-mlp", steps=100)
            (tmp_path / "omniglot-mlp" / "runs").mkdir(parents=True, exist_ok=True)
            folder.rename(tmp_path / "omniglot-mlp" / "runs" / folder.name)
    odd = make_run(tmp_path / "omniglot-mlp" / "runs", "vae", 0, experiment="omniglot-mlp", steps=400)
    text = claims.table(tmp_path)
    shown = {row[0]: row[1] for row in cells(text)}
    assert shown["SVI-k′ beats the VAE"].endswith("**holds**")
    assert shown["BSVI-k beats SVI-k′"].endswith("**not shown** (2 seeds)")
    assert odd.exists() and "omniglot-mlp: Left out" in text and "VAE (steps = 400), 1 run." in text


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_runs_say_how_they_were_made(folder):
    about = json.loads((folder / "about.json").read_text())
    assert len(about["commands"]) >= 2 and all(command.startswith("bsvi ") for command in about["commands"])
    configs = [json.loads(path.read_text()) for path in folder.glob("runs/*/config.json")]
    assert len(configs) == about["runs"]
    for config in configs:
        assert re.fullmatch("[0-9a-f]{64}", config["data"]["sha256"]) and config["git"] and config["versions"]["torch"]


def test_results_are_small_and_name_no_place_of_a_machine():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    texts = [path for path in files if path.suffix in (".json", ".jsonl", ".md", ".csv", ".tex", ".txt", ".html")]
    assert len(texts) > 50
    for path in texts:
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|mnt)/", path.read_text()), path


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*/index.html")), ids=lambda page: page.parent.name)
def test_published_pages_link_to_nothing_that_was_not_published(page):
    links = re.findall(r"<a [^>]*href=\"([^\"]*)\"", page.read_text())
    assert links and all(link.startswith(("#", "data:")) or (page.parent / link).exists() for link in links)


def test_the_interval_of_a_median_is_that_of_the_sign_test():
    found = claims.of_median([float(value) for value in range(1, 16)])
    assert (found.low, found.high) == (4, 12)  # of 15 values the 4th and the 12th, as in printed tables
    assert claims.of_median([1.0, 2.0, 3.0]).high == math.inf  # nothing can be said from three


def test_the_same_time_is_shown_or_contradicted_by_the_whole_interval():
    cases = {"holds": [0.95] * 20, "contradicted": [1.2] * 20, "not shown": [1.05, 1.15] * 10}
    for expected, ratios in cases.items():
        assert claims.same_time(ratios).endswith(f"**{expected}**")
    assert "not shown" in claims.same_time([]) and "not shown" in claims.same_time([1.0] * 3)
