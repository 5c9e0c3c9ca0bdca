"""Rows beyond the paper in the report: claims of their own, the figure of their rates, and what not to judge them by."""

import json

from bsvi.report import make_report
from bsvi.report.beyond import BEYOND, EQUAL_TIME, check_beyond
from bsvi.report.claims import HOLDS, check_claims
from bsvi.report.curves import draw_rates
from bsvi.report.experiments import group_runs
from bsvi.report.runs import read_runs
from bsvi.report.style import use_style
from bsvi.report.words import write_summary
from bsvi.tables.methods import METHODS
from tests.report.made_runs import make_runs


def make_beyond(root, methods=("bsvi", "svi", "bsvi-sir"), seconds=None):
    """Runs of bsvi and svi under the names bsvi-e2e and sa-vae, with rates that rise over training."""
    make_runs(root, [*methods], steps=200)
    if seconds:  # as bsvi sweep --equal-time: each run makes as many updates as it can
        for i, folder in enumerate(sorted(root.glob("*/*-seed*"))):
            about = json.loads((folder / "config.json").read_text())
            about["config"] |= {"seconds": seconds, "steps": 10**9}
            (folder / "config.json").write_text(json.dumps(about))
            result = json.loads((folder / "result.json").read_text())
            (folder / "result.json").write_text(json.dumps(result | {"stopped": "seconds", "steps": 150 + i}))
    for method, name in (("bsvi", "bsvi-e2e"), ("svi", "sa-vae")):
        for folder in root.glob(f"*/{method}-seed*"):
            about = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(about | {"method": name}))
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            if name == "bsvi-e2e":
                lines = [line | {"rate_1": 0.1 + line["step"] / 1000, "rate_2": 0.2} for line in lines]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (experiment,) = group_runs(read_runs([root])[0])
    return experiment


def test_claims_beyond_the_paper_are_apart_and_name_no_number_of_the_paper(tmp_path):
    experiment = make_beyond(tmp_path)
    found = {line.claim.text: line for line in check_beyond(experiment)}
    assert found["The buffer beats the last draw end to end, too"].verdict == HOLDS  # levels 2.5 and 1.0
    assert "DReG is at least as good as IWAE" not in found  # there are no such runs
    assert all(line.paper == "" for line in found.values())
    assert not {line.claim.text for line in check_claims(experiment)} & {claim.text for claim in BEYOND}
    assert all(not (METHODS[claim.method].paper and METHODS[claim.other].paper) for claim in BEYOND)


def test_the_rates_of_a_refinement_that_was_trained_are_drawn(tmp_path):
    with use_style():
        drawn = draw_rates(make_beyond(tmp_path))
    assert drawn.name.endswith("-rates") and "BSVI-k-E2E 0.3, 0.2" in drawn.alt
    assert len(drawn.figure.axes) == 1 and len(drawn.figure.axes[0].lines) == 2


def test_the_summary_warns_against_judging_by_the_encoder_alone(tmp_path):
    text = " ".join(write_summary(make_beyond(tmp_path), []))
    assert "Do not judge" in text and "BSVI-k-E2E" in text and "BSVI-k-SIR" not in text.split("Do not judge")[1]


def test_runs_of_equal_time_are_judged_by_claims_about_equal_time(tmp_path):
    experiment = make_beyond(tmp_path, ("vae", "bsvi", "svi", "bsvi-sir"), seconds=100.0)
    assert experiment.seconds == 100.0 and not experiment.left_out
    found = {line.claim.text: line for line in check_beyond(experiment)}
    assert not {*found} & {claim.text for claim in BEYOND}
    assert found["At equal time end to end beats the VAE"].verdict == HOLDS  # levels 2.5 and 0
    assert found["At equal time BSVI-k-SIR beats the VAE"].verdict == HOLDS  # levels 2.6 and 0
    assert found["At equal time end to end beats decoupled training"].interval.mean < 0  # levels 2.5 and 2.6
    assert "At equal time DReG is at least as good as IWAE" not in found
    assert all(line.paper == "" for line in found.values())  # the paper counts updates
    text = " ".join(write_summary(experiment, [], [*found.values()]))
    assert "16 runs of 100 seconds of updates" in text and "claims beyond the paper" in text


def test_runs_of_equal_updates_are_not_judged_by_time(tmp_path):
    experiment = make_beyond(tmp_path)
    assert experiment.seconds is None
    assert not {line.claim.text for line in check_beyond(experiment)} & {claim.text for claim in EQUAL_TIME}


def test_the_page_has_the_claims_beyond_the_paper_under_a_heading_of_their_own(tmp_path):
    make_beyond(tmp_path / "runs", ("vae", "bsvi", "svi", "bsvi-sir"), seconds=100.0)
    page = make_report([tmp_path / "runs"], tmp_path / "out").read_text()
    paper, beyond = page.index("<h3>Does the paper hold?</h3>"), page.index("<h3>Beyond the paper</h3>")
    assert paper < page.index("SVI-k′ beats the VAE".replace("k′", "<i>k</i>′")) < beyond
    assert beyond < page.index('id="omniglot-small-claims-beyond"') < page.index("<h3>Figures</h3>")
    assert "after 100 seconds of updates each" in page
