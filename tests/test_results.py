"""What results/ shows is what its archives of runs give, with all that one needs to make it again."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import claims, compare, end_to_end, judges, publish
from bsvi.report import archive
from bsvi.report.beyond import check_beyond
from bsvi.report.claim_tables import make_claims_table
from bsvi.report.claims import check_claims
from bsvi.report.estimates import make_estimates_table
from bsvi.report.experiments import group_runs
from bsvi.report.figures import draw_progress
from bsvi.report.render import to_markdown
from bsvi.report.run_tables import make_cost_table, make_runs_table
from bsvi.report.runs import read_runs
from bsvi.report.tables import make_differences_table, make_iwae_table, make_scores_table
from tests.report.made_runs import make_run

RESULTS = Path(__file__).parent.parent / "results"
PUBLISHED = sorted(path.parent for path in RESULTS.glob("*/about.json"))
LARGE = ("fashion-mnist-mlp", "omniglot-mlp", "svhn-mlp")  # whose claims are in claims.md too


def cells(text):
    """The rows of a markdown table."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def sections(folder):
    """The published tables by name."""
    _, *parts = re.split(r"^## (.+)\n", (folder / "tables.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def tables_of(experiment, compared):
    """Every table that the report makes of an experiment."""
    if compared:
        yield make_claims_table(experiment, check_claims(experiment))
        if beyond := check_beyond(experiment):
            yield make_claims_table(experiment, beyond, beyond=True)
        yield make_differences_table(experiment)
    yield from (
        make(experiment, split) for make in (make_scores_table, make_estimates_table) for split in experiment.splits()
    )
    yield from (make_iwae_table(experiment), make_cost_table(experiment), make_runs_table(experiment))


@pytest.mark.parametrize(
    "folder",
    [pytest.param(folder, marks=[pytest.mark.slow] * (folder.name in LARGE), id=folder.name) for folder in PUBLISHED],
)
def test_published_tables_are_those_of_the_published_runs(folder, tmp_path, monkeypatch):
    archive.unpack(folder / archive.NAME, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)  # the tables name run folders as runs/...
    runs, warnings = read_runs([Path("runs")])
    assert runs and not warnings and all(run.state == "scored" for run in runs)
    compared = publish.has_claims(json.loads((folder / "about.json").read_text())["shown"])
    found = [table for experiment in group_runs(runs) for table in tables_of(experiment, compared)]
    made, shown = {table.name: to_markdown(table) for table in found if table}, sections(folder)
    assert set(shown) == set(made)
    for name in made:
        assert cells(shown[name]) == cells(made[name]), name
        assert shown[name].strip() == made[name].strip(), name  # captions and notes too


@pytest.mark.slow
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_one_command_makes_all_that_is_shown_again(folder, tmp_path, monkeypatch):
    again = tmp_path / folder.name
    again.mkdir()
    for name in ("about.json", archive.NAME):
        shutil.copy(folder / name, again / name)
    monkeypatch.setattr(sys, "argv", ["publish.py", str(again)])
    publish.main()
    assert files_in(again) == files_in(folder)
    assert (again / "tables.md").read_text() == (folder / "tables.md").read_text()


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_publishing_leaves_a_handful_of_files_from_which_the_report_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr("bsvi.report.make.FIRST_FIGURES", [])
    monkeypatch.setattr("bsvi.report.make.FIGURES", [draw_progress])  # to be quick
    for method in ("vae", "bsvi"):
        make_run(tmp_path / "runs", method, 0, experiment="made", steps=100)
    unfinished = make_run(tmp_path / "runs", "svi", 0, experiment="made", steps=100)
    (unfinished / "result.json").unlink()
    runs, out = unfinished.parent, tmp_path / "results" / "made"
    words = [
        "publish.py",
        str(out),
        "--runs",
        str(runs),
        "--command",
        "bsvi sweep",
        "--tables",
        "--figures",
        "progress",
    ]
    monkeypatch.setattr(sys, "argv", words)
    publish.main()
    assert files_in(out) == {"about.json", archive.NAME, "tables.md", "figures/made-progress.png"}
    about = json.loads((out / "about.json").read_text())
    assert about["commands"] == ["bsvi sweep", "./run python benchmarks/publish.py results/made"] and about["runs"] == 2
    assert about["left_out_unfinished"] == [unfinished.name]
    assert {name.split("-")[1] for name in sections(out)} == {"scores", "iwae", "cost", "runs"}
    text, packed = (out / "tables.md").read_text(), (out / archive.NAME).read_bytes()
    with archive.open_archive(out) as again:  # publishing what is published changes nothing
        publish.publish(again, out, ["bsvi sweep"], about["shown"])
    assert (out / archive.NAME).read_bytes() == packed
    (out / "tables.md").unlink()
    shutil.rmtree(runs)
    monkeypatch.setattr(sys, "argv", words[:2])
    publish.main()
    assert (out / "tables.md").read_text() == text and "VAE" in text


def test_the_table_of_claims_is_that_of_the_published_runs():
    assert (RESULTS / "claims.md").read_text() == claims.page(RESULTS)
    assert (RESULTS / "judge.md").read_text() == claims.judge(RESULTS) and "AIS" in claims.judge(RESULTS)


def test_what_is_said_of_the_pixelcnn_is_what_its_tables_say():
    said = (RESULTS / "README.md").read_text().split("## Small gated PixelCNN")[1].split("\n## ")[0]
    names = ("omniglot-small", "fashion-mnist-small", "svhn-small")
    tables = {name: sections(RESULTS / name)[f"{name}-claims"] for name in names}
    figures = re.findall(r"\d+\.\d\d", said)
    assert len(figures) > 15 and set(figures) <= set(re.findall(r"\d+\.\d\d", "".join(tables.values())))
    verdicts = {row[0].split(" (")[0]: row[2] for row in cells(tables["omniglot-small"])[2:]}
    assert verdicts["BSVI-k beats SVI-k′"] == verdicts["BSVI-k-SIR beats SVI-k′"] == "holds"
    assert verdicts["SVI-k′ beats the VAE"].startswith("not shown") and "does not beat" in said


def test_the_table_of_claims_names_fewer_seeds_and_runs_that_were_left_out(tmp_path):
    for method in ("vae", "svi", "bsvi"):
        for seed in (0, 1, 2) if method != "bsvi" else (0, 1):
            make_run(tmp_path / "made", method, seed, experiment="omniglot-mlp", steps=100)
    odd = make_run(tmp_path / "odd", "vae", 0, experiment="omniglot-mlp", steps=400)
    odd.rename(tmp_path / "made" / "omniglot-mlp" / "odd")
    (tmp_path / "omniglot-mlp").mkdir()
    archive.pack(tmp_path / "made" / "omniglot-mlp", tmp_path / "omniglot-mlp" / archive.NAME)
    text = claims.page(tmp_path)
    shown = {row[0]: row[1] for row in cells(text)}
    assert shown["SVI-k′ beats the VAE"].endswith("**holds**")
    assert shown["BSVI-k beats SVI-k′"].endswith("**not shown** (2 seeds)")
    assert "omniglot-mlp: Left out" in text and "VAE (steps = 400), 1 run." in text
    shown = (RESULTS / "claims.md").read_text()
    assert shown.count("| Claim |") == 2 and text.count("| Claim |") == 1  # a table for each kind of network


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_runs_say_how_they_were_made(folder):
    about = json.loads((folder / "about.json").read_text())
    *made, again = about["commands"]
    assert made and all(command.startswith("bsvi ") for command in made)
    assert again == f"./run python benchmarks/publish.py results/{folder.name}"
    with archive.open_archive(folder) as runs:
        configs = [json.loads(path.read_text()) for path in runs.glob("*/config.json")]
    assert len(configs) == about["runs"]
    for config in configs:
        assert re.fullmatch("[0-9a-f]{64}", config["data"]["sha256"]) and config["git"] and config["versions"]["torch"]


def test_results_are_few_and_small_and_name_no_place_of_a_machine():
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 80 and sum(path.stat().st_size for path in files) < 16e6
    named = {str(path): path.read_text() for path in files if path.suffix in (".json", ".md", ".html")}
    for folder in PUBLISHED:
        with archive.open_archive(folder) as runs:
            texts = [path for path in runs.rglob("*") if path.suffix in (".json", ".jsonl", ".txt")]
            named |= {f"{folder}: {path.relative_to(runs)}": path.read_text() for path in texts}
    assert len(named) > 600
    for name, text in named.items():
        assert not re.search(r"(?<![\w.])/(work|home|root|tmp|mnt)/", text), name


def test_every_figure_is_shown_or_linked_on_a_page():
    pages = [RESULTS / "README.md", *(RESULTS.parent / "docs").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    unseen = [path for path in RESULTS.rglob("*.png") if path.relative_to(RESULTS).as_posix() not in text]
    assert not unseen, f"{unseen}: name it on a page, or leave it to index.html, which has all figures in it"


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


def test_the_two_judges_page_is_what_its_command_makes():
    means = judges.read_all(RESULTS)
    assert len(means) >= 60 and judges.make_page(means) == (RESULTS / "judges.md").read_text()


def test_the_table_of_forms_is_what_its_rows_give():
    folder = RESULTS / "end_to_end"
    rows = [json.loads(line) for line in (folder / "forms-60s.jsonl").read_text().splitlines()]
    assert len(rows) >= 33 and end_to_end.make_table(rows) == (folder / "table-60s.md").read_text()


def test_two_methods_are_compared_by_image_and_seed():
    one = {
        ("a", 0): {1: 2.0, 2: 4.0, 9: 0.0},
        ("a", 1): {1: 1.0, 2: 1.0},
        ("b", 0): {1: 1.0, 2: 3.0},
        ("c", 0): {1: 0.0},
    }
    other = {("a", 0): {1: 1.0, 2: 1.0, 3: 7.0}, ("a", 1): {1: 1.0, 2: 1.0}, ("b", 0): {1: 0.0, 2: 0.0}}
    assert compare.compare(one, other) == [
        "a: +1.00 [-11.71, +13.71] (2 seeds, 2 images: +2.00 ± 1.00, +0.00 ± 0.00)",
        "b: +2.00 ± 1.00 (1 seed, 2 images)",
    ]
    assert compare.compare(one, {("d", 0): {1: 0.0}}) == ["no experiment and seed that both have"]
    with pytest.raises(SystemExit, match="no run of nobody with test scores"):
        compare.read_scores(f"{RESULTS / 'omniglot-small'}:nobody")
