"""Estimators side by side: what the page shows, and which number it says to publish."""

import json
import math

from bsvi.report.estimates import choose_estimate, list_estimates, make_estimates_table, say_which
from bsvi.report.experiments import group_runs
from bsvi.report.runs import read_runs
from tests.report.made_runs import make_run


def part(mean, **more):
    return {"mean": mean, "stderr": 0.1, "low": mean - 0.2, "high": mean + 0.2, "images": 100, **more}


def entry(**more):
    further = {
        "refine-anneal-1000": part(-99.0, passes=968, minus_bsvi=part(1.0), diagnostics={"rise": 0.1}),
        "refine-anneal-10000": part(-99.5, passes=9900, minus_bsvi=part(0.5), diagnostics={"rise": 0.1}),
        "ais": {**part(-90.0, passes=180_000), "images": 10},
    }
    known = {"k": 500, "examples": 100, "log_likelihood": part(-100.0), "iwae": {"500": part(-103.0)}}
    return {**known, "estimates": further, **more}


def test_the_rule_takes_the_most_passes_of_all_images_and_not_the_highest_value():
    estimates = list_estimates(entry())
    assert [each.name for each in estimates][:2] == ["BSVI-500", "IWAE-500"] and estimates[0].passes == 1001
    assert choose_estimate(estimates).name == "refine-anneal-10000"
    assert choose_estimate([]) is None and say_which({}) == ""


def test_the_words_name_the_certificate_and_what_speaks_against_the_number():
    said = say_which(entry())
    assert said.startswith("Publish refine-anneal-10000, -99.50 [-99.70, -99.30], of 100 images") and "own" not in said
    gap = {"estimator": "refine-anneal-10000", "gap": part(0.3)}
    assert "at most 0.30 [0.10, 0.50] nats too low" in say_which(entry(certificate=gap))
    other = {**gap, "estimator": "refine-anneal-1000"}
    assert "at most" not in say_which(entry(certificate=other))  # it is of another cost
    low = part(-99.5, passes=9900, minus_bsvi=part(-3.0), diagnostics={"rise": 4.0})
    said = say_which(entry(estimates={"refine-anneal-10000": low}))
    assert "disagree by 4.0 nats" in said and "BSVI is 3.00 nats above it" in said
    assert "--estimator refine-anneal" in say_which(entry(estimates={}))


def test_what_is_damaged_is_left_out():
    damaged = {"a": 3, "b": {"mean": "x"}, "c": part(-1.0, diagnostics=[], minus_bsvi="no")}
    found = list_estimates(entry(estimates=damaged, iwae={"x": {}, "5": 7}, certificate=[]))
    assert [each.name for each in found] == ["BSVI-500", "c"] and math.isnan(found[1].rise)
    assert list_estimates({"estimates": [1], "iwae": 4, "log_likelihood": None}) == []


def test_the_table_has_a_column_for_each_estimator_with_its_cost(tmp_path):
    for method in ("vae", "bsvi"):
        make_run(tmp_path, method, 0, steps=200)
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    assert make_estimates_table(experiment) is None
    for file in tmp_path.rglob("scores.json"):
        content = json.loads(file.read_text())
        gap = {"estimator": "refine-anneal-1000", "gap": part(0.3)}
        content["test"] |= {"estimates": {"refine-anneal-1000": part(-80.0, passes=968)}, "certificate": gap}
        content["test"]["estimates"]["refine-anneal-1000"]["images"] = content["test"]["examples"]
        file.write_text(json.dumps(content))
    (experiment,) = group_runs(read_runs([tmp_path])[0])
    made = make_estimates_table(experiment)
    titles = [column.name for column in made.columns]
    assert "refine-anneal-1000 (968 passes)" in titles and titles[-1] == "at most too low by"
    line = made.rows[0]
    assert line[titles.index("refine-anneal-1000 (968 passes)")].bold and line[-1].text == "0.30"
