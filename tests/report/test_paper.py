"""The paper's numbers in the report are the numbers of the paper."""

import re
from pathlib import Path

import pytest

from bsvi.report.paper import ERRATA, ORDER, SCORES, find_dataset, read_iwae_tables, read_score_tables
from bsvi.tables.methods import METHODS

ROW = {  # the names of the rows in the LaTeX
    "vae": r"VAE",
    "iwae": r"IWAE-$k'$",
    "svi": r"SVI-$k'$",
    "bsvi-ds": r"BSVI-$k$-DS",
    "bsvi": r"BSVI-$k$",
    "bsvi-pi": r"BSVI-$k$-$\pi$",
    "bsvi-sir": r"BSVI-$k$-SIR",
    "bsvi-sir-pi": r"BSVI-$k$-SIR-$\pi$",
}


@pytest.fixture(scope="module")
def latex():
    """Table label -> row name -> every number of the row, as printed."""
    texts = sorted((Path(__file__).parents[3] / "shared" / "paper").glob("*.txt"))
    if not texts:
        pytest.skip("the paper's LaTeX is not at ../shared/paper")
    tables = {}
    for chunk in texts[0].read_text().split(r"\begin{table")[1:]:
        body = chunk.split(r"\end{table")[0]
        label = re.search(r"\\label\{(table:\w+)\}", body)[1]
        lines = [line for line in body.splitlines() if "&" in line and not line.lstrip().startswith("%")]
        tables[label] = {
            line.split("&")[0].strip(): re.findall(r"-?\d+(?:\.\d+)?", line.split("&", 1)[1]) for line in lines
        }
    return tables


def printed(row):
    return [text for cell in row.values() for text in (cell.text, cell.deviation) if text]


def test_every_number_is_the_number_in_the_latex(latex):
    tables = [*read_score_tables().values(), *read_iwae_tables().values()]
    compared = 0
    for table in tables:
        assert set(table.rows) == set(ORDER)
        for method, row in table.rows.items():
            assert printed(row) == latex[table.source][ROW[method]], (table.source, method)
            compared += len(printed(row))
    assert compared == 6 * 8 * 8 + 3 * 8 * 6


def test_the_short_tables_of_section_6_are_rows_of_the_full_ones(latex):
    for short, dataset in (("omni", "omniglot"), ("svhn", "svhn"), ("fmnist", "fashion-mnist")):
        for method in ("vae", "iwae", "svi", "bsvi-sir"):
            assert latex[f"table:{short}_test"][ROW[method]] == printed(
                read_score_tables()[dataset, "test"].rows[method]
            )


def test_the_signs_are_those_of_the_tables():
    for table in read_score_tables().values():
        for row in table.rows.values():
            total = row["reconstruction"].value + row["kl"].value
            rounding = 1.1 if "." not in row["elbo"].text else 0.025
            assert abs(row["elbo"].value + total) <= rounding


def test_the_swapped_columns_of_the_fashion_table_are_real_and_noted():
    estimates, scores = read_iwae_tables()["fashion-mnist"], read_score_tables()["fashion-mnist", "test"]
    for one, other in (("svi", "iwae"), ("bsvi-sir", "bsvi-pi")):
        assert estimates.rows[one][""].text == scores.rows[other]["log_likelihood"].text
        assert estimates.rows[other][""].text == scores.rows[one]["log_likelihood"].text
        assert estimates.rows[one][""].text != scores.rows[one]["log_likelihood"].text
    assert "swapped" in estimates.erratum
    assert set(ERRATA) <= {table.source for table in [*read_score_tables().values(), *read_iwae_tables().values()]}


def test_only_the_papers_data_sets_get_its_numbers():
    names = ["omniglot-small", "SVHN", "fashion_mnist", "digits", "my-images"]
    assert [find_dataset(name) for name in names] == ["omniglot", "svhn", "fashion-mnist", None, None]
    assert {name for name, row in METHODS.items() if row.paper} == set(ORDER)
    assert list(SCORES) == ["log_likelihood", "elbo", "kl", "reconstruction"]
