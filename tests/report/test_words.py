"""The sentences of the summary say what the tables beside them say, and no more than the runs can show."""

import json
import re

import pytest

from bsvi.report.claims import check_claims
from bsvi.report.experiments import group_runs
from bsvi.report.kinds import group_by_kind
from bsvi.report.records import ReportWarning
from bsvi.report.run_tables import make_cost_table
from bsvi.report.runs import read_runs
from bsvi.report.words import write_summary
from tests.report.made_runs import make_run, make_runs


def words(place):
    (experiment,) = group_runs(read_runs([place])[0])
    return experiment, " ".join(write_summary(experiment, check_claims(experiment)))


def slow_down(folder, factor, after):
    """The run's clock from a step on, as if other work had come to the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    start = next(line["seconds"] for line in lines if line["step"] >= after)
    for line in lines:
        line["seconds"] += max(0.0, line["seconds"] - start) * (factor - 1)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"seconds": lines[-1]["seconds"]}))


def test_the_cheapest_method_and_its_cost_are_those_of_the_cost_table(tmp_path):
    make_runs(tmp_path, ("vae", "bsvi", "bsvi-sir"), (0, 1, 2), steps=400)
    for seed in (0, 1):  # the total time of BSVI-SIR is then the longest, its time per step undisturbed the shortest
        slow_down(tmp_path / "omniglot-small" / f"bsvi-sir-seed{seed}", 9.0, after=300)
    experiment, text = words(tmp_path)
    rows = {row[0].text: row for row in make_cost_table(experiment).rows}
    column = [column.name for column in make_cost_table(experiment).columns].index("time, ratio to VAE")
    name, ratio = re.search(
        r"Of all these (\S+) is the cheapest per step, at (\S+) times the VAE's time", text
    ).groups()
    assert (name, ratio) == ("BSVI-k-SIR", rows["BSVI-k-SIR"][column].text)
    near = [row for label, row in rows.items() if label != "VAE"]
    assert rows[name][column].numbers[""] == min(row[column].numbers[""] for row in near)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_method_without_others_is_above_nothing(tmp_path, seeds):
    make_runs(tmp_path, ("bsvi",), seeds, steps=100)
    _, text = words(tmp_path)
    assert "BSVI-k is alone with test scores" in text and "every other" not in text and "highest" not in text
    assert ("With one seed nothing can be shown" in text) == (len(seeds) == 1)


def test_methods_that_share_no_seed_are_not_clearly_apart(tmp_path):
    make_runs(tmp_path, ("vae",), (0, 1), steps=100)
    make_runs(tmp_path, ("bsvi",), (2, 3), steps=100)
    _, text = words(tmp_path)
    assert "not comparable with it in pairs: VAE" in text and "clearly above" not in text


def test_with_seeds_and_pairs_the_best_is_clearly_above(tmp_path):
    make_runs(tmp_path, ("vae", "bsvi"), (0, 1, 2, 3), steps=100)
    assert "clearly above every other. It takes 9.50 times the VAE's time per step." in words(tmp_path)[1]


def test_a_high_khat_of_most_images_is_in_the_summary(tmp_path):
    shares = {0: {"bsvi": 0.93, "iwae": 1.0}, 1: {"bsvi": 0.6}, 2: {"bsvi": 0.4}}
    for seed, share in shares.items():
        folder = make_run(tmp_path, "vae", seed, steps=100)
        scores = json.loads((folder / "scores.json").read_text())
        scores["test"]["diagnostics"] = {"khat_above_0.7": share}
        (folder / "scores.json").write_text(json.dumps(scores))
    text = words(tmp_path)[1]
    assert "k-hat is above 0.7 for most test images, for the log-likelihood in 2 of 3 runs (60% to 93% of" in text
    assert "for IWAE in 1 of 1 run (100% of the images)" in text and "too low" in text


def test_a_khat_that_is_low_for_most_images_is_not_in_the_summary(tmp_path):
    make_runs(tmp_path, ("vae", "bsvi"), (0, 1), steps=100)
    assert "k-hat" not in words(tmp_path)[1]


def test_warnings_that_differ_in_numbers_alone_are_of_one_kind():
    texts = ["IWAE-500: high for 9% of 60", "IWAE-500: high for 11.5% of 60", "IWAE-2500: high for 9% of 60", "other"]
    kinds = group_by_kind([ReportWarning(f"run{i}", text) for i, text in enumerate(texts)])
    assert [(kind.text, len(kind.warnings)) for kind in kinds] == [
        ("IWAE-500: high for 9 to 11.5% of 60", 2),
        ("IWAE-2500: high for 9% of 60", 1),
        ("other", 1),
    ]


def test_doubled_runs_are_one_kind_of_warning(tmp_path):
    make_runs(tmp_path / "a", ("vae", "bsvi"), (0, 1), steps=100)
    make_runs(tmp_path / "b", ("vae", "bsvi"), (0, 1), steps=100)
    (kind,) = group_by_kind(words(tmp_path)[0].warnings)
    assert len(kind.warnings) == 4 and "as another folder, which is further" in kind.text
