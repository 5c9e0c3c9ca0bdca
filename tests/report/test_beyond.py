"""Rows beyond the paper in the report: claims of their own, the figure of their rates, and what not to judge them by."""

import json

from bsvi.report.claims import BEYOND, HOLDS, check_beyond, check_claims
from bsvi.report.curves import draw_rates
from bsvi.report.experiments import group_runs
from bsvi.report.runs import read_runs
from bsvi.report.style import use_style
from bsvi.report.words import write_summary
from bsvi.tables.methods import METHODS
from tests.report.made_runs import make_runs


def make_beyond(root):
    """Runs of bsvi and svi under the names bsvi-e2e and sa-vae, with rates that rise over training."""
    make_runs(root, ["bsvi", "svi", "bsvi-sir"], steps=200)
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
