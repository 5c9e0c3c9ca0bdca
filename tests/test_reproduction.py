"""The paper's tables beside the published runs are those of the archives; what was not run is a dash."""

import json

import numpy as np
import pytest

from benchmarks import reproduction
from bsvi.report import archive, paper
from bsvi.report.cells import MISSING, make_difference_cell
from bsvi.report.intervals import crossed_interval
from tests.report.made_runs import make_run
from tests.test_results import RESULTS, cells

NAME = "omniglot-small"


@pytest.fixture
def published(tmp_path):
    """``published(*runs)``: results with an archive of such runs, each a method, a seed, and a method that stands in for it."""

    def publish(*runs):
        for method, seed, stand_in, settings in runs:
            folder = make_run(tmp_path / "made", stand_in, seed, experiment=NAME, steps=100, config=settings)
            config = json.loads((folder / "config.json").read_text()) | {"method": method}
            (folder / "config.json").write_text(json.dumps(config))
            folder.rename(folder.with_name(f"run-{method}-seed{seed}"))
        (tmp_path / NAME).mkdir()
        archive.pack(tmp_path / "made" / NAME, tmp_path / NAME / archive.NAME)
        return tmp_path

    return publish


def read_tables(results):
    """The rows of the first table, log-likelihood, and of the second, KL*, by label."""
    found = reproduction.read_published(results, "omniglot")
    made = [
        cells(reproduction.to_markdown(reproduction.make_table("omniglot", found, score)))
        for score in reproduction.TABLES
    ]
    return [{row[0]: row[1:] for row in table[2:]} for table in made]


def difference(results, method, other, seeds, score):
    """The same by hand: images by row, seeds by column."""
    with archive.open_archive(results / NAME) as runs:
        values = [
            [np.load(runs / f"run-{name}-seed{seed}" / "scores-test.npz")[score] for name in (method, other)]
            for seed in seeds
        ]
    return make_difference_cell(crossed_interval(np.stack([one - two for one, two in values]))).text


def test_the_page_is_what_its_command_makes_of_the_published_runs():
    shown = (RESULTS / "reproduction.md").read_text()
    assert shown.split(reproduction.FULL_SIZE)[0] == reproduction.make_comparison(RESULTS) + "\n"


@pytest.mark.slow
def test_the_time_at_full_size_is_that_of_the_plan():
    shown = (RESULTS / "reproduction.md").read_text()
    assert shown.endswith(reproduction.make_full_size())


def test_differences_are_paired_and_what_was_not_run_is_a_dash(published):
    plain = [
        (method, seed, method, None)
        for method in ("vae", "svi", "bsvi")
        for seed in range(3 if method != "bsvi" else 2)
    ]
    results = published(*plain)
    for table, score in zip(read_tables(results), reproduction.TABLES, strict=True):
        assert len(table) == len(paper.ORDER) and {len(row) for row in table.values()} == {
            4
        }  # no column of results/NAME-mlp
        assert table["IWAE-k′"][2:] == [MISSING] * 2 and MISSING not in table["IWAE-k′"][:2]
        assert table["SVI-k′"][1] == table["SVI-k′"][3] == MISSING and table["SVI-k′"][2].endswith("(3)")
        assert table["VAE"][3] == f"**{difference(results, 'vae', 'svi', (0, 1, 2), score)}**"
        assert table["BSVI-k"][3] == difference(results, "bsvi", "svi", (0, 1), score)  # two seeds are never bold
        assert table["BSVI-k"][2].endswith("(2)")
    assert table["BSVI-k"][:2] == ["8.29 ± 0.25", "+6.92"]  # as the paper has it
    assert "60 test images" in reproduction.make_comparison(results)


def test_a_difference_over_fewer_seeds_says_so(published):
    results = published(
        *(("vae", seed, "vae", None) for seed in range(3)), *(("svi", seed, "svi", None) for seed in range(2))
    )
    assert (
        read_tables(results)[0]["VAE"][3] == difference(results, "vae", "svi", (0, 1), "log_likelihood") + " (2 seeds)"
    )


def test_without_the_method_that_others_are_compared_with_there_are_means_alone(published):
    table = read_tables(published(*(("vae", seed, "vae", None) for seed in range(2))))[0]
    assert table["VAE"][2].endswith("(2)") and table["VAE"][3] == MISSING


def test_an_end_to_end_method_may_have_settings_of_its_own_but_not_other_updates(published):
    plain = [(method, seed, method, None) for method in ("vae", "svi") for seed in range(3)]
    own = [("bsvi-e2e", seed, "bsvi-sir", {"e2e.steps": 3}) for seed in range(3)]
    results = published(*plain, *own, ("sa-vae", 0, "bsvi", {"optim.lr": 0.1}))
    table, text = read_tables(results)[0], reproduction.make_comparison(results)
    assert list(table) == [*map(reproduction.find_label, paper.ORDER), "BSVI-k-E2E"]
    assert table["BSVI-k-E2E"][:2] == [MISSING] * 2  # none of the paper's
    assert table["BSVI-k-E2E"][3] == f"**{difference(results, 'bsvi-e2e', 'svi', (0, 1, 2), 'log_likelihood')}**"
    assert f"BSVI-k-E2E of {NAME} has e2e.steps = 3." in text
    assert f"{NAME}: Left out" in text and "SA-VAE" in text and "optim.lr = 0.1" in text


def test_a_data_set_without_runs_has_no_table(tmp_path):
    assert reproduction.make_comparison(tmp_path) == reproduction.ABOUT
