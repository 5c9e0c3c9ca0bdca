"""Tables say what the scores say, in four formats that agree."""

import csv
import io
import json
import re

import numpy as np
import pytest

from bsvi.report import paper
from bsvi.report.cells import Cell, Column, ReportTable, format_number
from bsvi.report.claim_tables import make_claims_table
from bsvi.report.claims import check_claims
from bsvi.report.experiments import group_runs
from bsvi.report.render import to_csv, to_html, to_latex, to_markdown
from bsvi.report.run_tables import make_cost_table, make_runs_table
from bsvi.report.runs import read_runs
from bsvi.report.tables import (
    _mark_tightest,
    make_differences_table,
    make_iwae_table,
    make_paper_tables,
    make_scores_table,
)
from bsvi.tables.methods import find_label
from tests.report.made_runs import make_runs


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    root = tmp_path_factory.mktemp("tables")
    make_runs(root, steps=200)
    (experiment,) = group_runs(read_runs([root])[0])
    return experiment


@pytest.fixture(scope="module")
def tables(experiment):
    made = [make_scores_table(experiment, split) for split in ("test", "train")] + [make_iwae_table(experiment)]
    made += [
        make_differences_table(experiment),
        make_claims_table(experiment, check_claims(experiment)),
        make_cost_table(experiment),
    ]
    return [*made, make_runs_table(experiment), *make_paper_tables()]


def test_means_and_deviations_are_those_over_seeds(experiment):
    table = make_scores_table(experiment, "test")
    for row, cells in zip(experiment.rows, table.rows, strict=True):
        per_seed = [run.scores["test"].values["log_likelihood"].mean() for run in row.runs]
        assert cells[2].numbers[""] == pytest.approx(np.mean(per_seed))
        assert cells[2].numbers["sd"] == pytest.approx(np.std(per_seed, ddof=1))


def test_the_best_is_bold_and_kl_never_is(experiment):
    table = make_scores_table(experiment, "test")
    for column, best in ((2, max), (3, max), (5, min)):
        top = best(row[column].numbers[""] for row in table.rows)
        assert [row[column].bold for row in table.rows] == [
            format_number(row[column].numbers[""]) == format_number(top) for row in table.rows
        ]
    assert not any(row[4].bold or row[8].bold for row in table.rows)


def test_the_papers_numbers_stand_beside_with_its_own_bold(experiment):
    rows = {row[0].text: row for row in make_scores_table(experiment, "test").rows}
    assert rows["BSVI-k-SIR"][6].text == "−88.80 ± 0.03" and rows["BSVI-k-SIR"][6].bold
    assert rows["SVI-k′"][7].bold and rows["BSVI-k-π"][9].bold


def test_rows_are_in_the_papers_order(experiment):
    assert [row[0].text for row in make_scores_table(experiment, "test").rows] == [find_label(m) for m in paper.ORDER]


def test_the_tightest_estimate_is_bold_unless_tied(experiment):
    rows = {row[0].text: row for row in make_iwae_table(experiment).rows}
    assert rows["BSVI-k"][2].bold and not any(cell.bold for cell in rows["BSVI-k"][3:8])
    assert not any(cell.bold for cell in rows["VAE"])  # equal as printed, in these runs and in the paper


def test_a_row_minus_itself_is_empty_and_signs_flip(experiment):
    table = make_differences_table(experiment)
    by_row = {row[0].text: row for row in table.rows}
    names = [column.name.removeprefix("minus ") for column in table.columns]
    for i, name in enumerate(names[1:], 1):
        assert by_row[name][i].text == "–"
    assert by_row["BSVI-k"][names.index("SVI-k′")].numbers[""] == pytest.approx(
        -by_row["SVI-k′"][names.index("BSVI-k")].numbers[""]
    )


def test_csv_has_full_precision_and_one_field_per_heading(tables):
    for table in tables:
        rows = list(csv.reader(io.StringIO(to_csv(table))))
        assert len({len(row) for row in rows}) == 1 and len(rows) == len(table.rows) + 1
        assert len(set(rows[0])) == len(rows[0]), "two headings with one name"
    first = next(iter(csv.DictReader(io.StringIO(to_csv(tables[0])))))
    assert float(first["these runs: Log-likelihood"]) == tables[0].rows[0][2].numbers[""]
    assert "these runs: Log-likelihood sd" in first


def test_markdown_and_latex_have_a_cell_per_column(tables):
    for table in tables:
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.columns) + 1}
        latex = to_latex(table)
        body = latex.split("\\midrule")[1].split("\\bottomrule")[0].strip().splitlines()
        assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(table.columns) - 1}
        assert latex.count("{") == latex.count("}") and latex.count("$") % 2 == 0
        assert latex.isascii() or not set(latex) & set("−±π′")
        assert "\\toprule" in latex and "\\hline" not in latex


def test_all_formats_show_the_same_numbers(tables):
    table = tables[0]
    shown = [cell.text for row in table.rows for cell in row]
    markdown, page = to_markdown(table), re.sub(r"</?i>", "", to_html(table)).replace("\u00a0", " ")
    for text in shown:
        assert text in markdown and text in page
    numbers = re.findall(r"\d+\.\d\d", " ".join(shown))
    assert re.findall(r"\d+\.\d\d", to_latex(table).split("\\midrule")[1]) == numbers


def test_texts_of_strangers_cannot_break_a_format():
    nasty = '<script>alert(1)</script> | & % $ # _ { } ~ ^ \\ "quoted" *x*'
    table = ReportTable(
        "name",
        nasty,
        nasty,
        [Column(nasty, numeric=False), Column("n")],
        [[Cell(nasty), Cell("1", {"": 1.0})]],
        [nasty],
    )
    assert "<script>" not in to_html(table)
    assert to_latex(table).count("{") - to_latex(table).count("\\{") == to_latex(table).count("}") - to_latex(
        table
    ).count("\\}")
    assert len(re.findall(r"(?<!\\)\|", to_markdown(table).splitlines()[-3])) == 3
    assert next(iter(csv.reader(io.StringIO(to_csv(table).split("\n", 1)[1]))))[0] == nasty


def test_one_seed_has_no_deviation_and_no_scores_no_table(tmp_path):
    make_runs(tmp_path / "one", ["vae", "bsvi"], (0,), steps=100)
    make_runs(tmp_path / "none", ["vae"], (0,), steps=100, ended=False)
    one, none = (group_runs(read_runs([tmp_path / name])[0])[0] for name in ("one", "none"))
    assert "±" not in "".join(cell.text for row in make_scores_table(one, "test").rows for cell in row[:6])
    assert (
        make_scores_table(none, "test") is None
        and make_iwae_table(none) is None
        and make_differences_table(none) is None
    )
    assert make_runs_table(none).rows[0][2].text == "running"


def test_a_data_set_that_is_not_the_papers_says_so(tmp_path):
    make_runs(tmp_path, ["vae", "bsvi"], (0, 1), steps=100, experiment="digits", data="digits")
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    table = make_scores_table(experiment, "test")
    assert len(table.columns) == 6 and "no numbers for these data" in table.caption


def test_estimates_are_compared_on_the_seeds_that_have_all_of_them(tmp_path):
    make_runs(tmp_path, ["bsvi"], (0, 1), steps=100)
    part = tmp_path / "omniglot-small" / "bsvi-seed1"
    scores = json.loads((part / "scores.json").read_text())
    scores["test"]["iwae"] = {}
    scores["test"]["log_likelihood"]["mean"] -= 50.0
    (part / "scores.json").write_text(json.dumps(scores))
    with np.load(part / "scores-test.npz") as arrays:
        kept = {name: arrays[name] for name in arrays.files if not name.startswith("iwae")}
    np.savez(part / "scores-test.npz", **kept | {"log_likelihood": kept["log_likelihood"] - 50.0})
    runs, _ = read_runs([tmp_path])
    (experiment,) = group_runs(runs)
    (row,) = make_iwae_table(experiment).rows
    alone = next(run for run in runs if run.seed == 0).scores["test"].mean("log_likelihood")
    assert row[2].numbers[""] == pytest.approx(alone)
    assert make_iwae_table(experiment).columns[1].name == "seeds" and row[1].text == "1", "of two seeds one has all"
    assert np.mean(experiment.rows[0].means("test", "log_likelihood")) == pytest.approx(alone - 25.0, abs=5.0)


def test_cost_is_relative_to_the_vae(experiment):
    rows = {row[0].text: row for row in make_cost_table(experiment).rows}
    assert rows["VAE"][3].text == "1.00" and rows["BSVI-k"][3].numbers[""] == pytest.approx(9.5)
    assert rows["BSVI-k-SIR"][1].text == "11"


def test_an_estimate_that_stands_alone_is_not_called_the_tightest():
    high, low = Cell("−1.00", {"": -1.0}), Cell("−2.00", {"": -2.0})
    assert [cell.bold for cell in _mark_tightest([high, low])] == [True, False]
    assert [cell.bold for cell in _mark_tightest([high, high])] == [False, False]
    assert [cell.bold for cell in _mark_tightest([high, Cell()])] == [False, False]
