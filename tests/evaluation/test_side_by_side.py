"""Results of different questions live side by side in a run folder, and the best one is what readers find."""

import json
import threading
import time

import numpy as np
import pytest

from bsvi import cli
from bsvi.evaluation.scores import Scores
from bsvi.runs import results
from bsvi.sweeps.jobs import is_scored

COMMON = ["--threads", "1", "--device", "cpu", "--compile", "off", "--quiet"]


def evaluate(run, k, examples, *more):
    words = ["evaluate", run, "--k", k, "--examples", examples, "--iwae", k, *COMMON, *more]
    assert cli.main([str(word) for word in words]) == 0


def gap(run, *words):
    assert cli.main(["gap", str(run), *map(str, words), *COMMON]) == 0


def best(run):
    entry = json.loads((run / "scores.json").read_text())["test"]
    with np.load(run / "scores-test.npz") as arrays:
        assert len(arrays["ids"]) == entry["examples"]
    return entry["examples"], entry["k"]


def kept(run, what="evaluation-test-*.json"):
    return sorted(
        (entry["examples"], entry["k"]) for path in run.glob(what) for entry in [json.loads(path.read_text())]
    )


def test_a_short_evaluation_does_not_take_the_place_of_a_longer_one(run, capsys):
    evaluate(run, 4, 30)
    capsys.readouterr()
    evaluate(run, 2, 2)
    assert best(run) == (30, 4) and kept(run) == [(2, 2), (30, 4)]
    said = capsys.readouterr().out
    assert "(test, 2 images, k = 2" in said and "scores.json and the report stay with 30 images, k = 4" in said
    assert len(Scores.load(run).ids) == 30
    evaluate(run, 8, 2)  # images count more than k
    assert best(run) == (30, 4)
    evaluate(run, 5, 30)
    evaluate(run, 3, 40)
    assert best(run) == (40, 3) and len(kept(run)) == 5
    evaluate(run, 3, 40, "--seed", 1)  # neither is better: the first stays, and both are there
    assert best(run) == (40, 3) and json.loads((run / "scores.json").read_text())["test"]["seed"] == 0
    assert len(kept(run)) == 6
    evaluate(run, 2, 3, "--split", "valid")
    assert best(run) == (40, 3) and set(json.loads((run / "scores.json").read_text())) == {"test", "valid"}


def test_every_result_has_its_own_arrays(run):
    evaluate(run, 4, 6)
    evaluate(run, 2, 3)
    for path in run.glob("evaluation-test-*.json"):
        entry = json.loads(path.read_text())
        with np.load(path.with_suffix(".npz")) as arrays:
            assert len(arrays["ids"]) == entry["examples"]
            assert arrays["log_likelihood"].mean() == pytest.approx(entry["log_likelihood"]["mean"])


def test_the_result_of_an_earlier_version_is_kept_when_a_better_one_comes(run):
    evaluate(run, 2, 3)
    for path in run.glob("evaluation-test-*"):
        path.unlink()  # as an earlier version left the folder
    evaluate(run, 2, 2)
    assert best(run) == (3, 2) and kept(run) == [(2, 2)]
    evaluate(run, 2, 5)
    assert best(run) == (5, 2) and kept(run) == [(2, 2), (3, 2), (5, 2)]
    with np.load(next(run.glob("evaluation-test-*-n3-*.npz"))) as arrays:
        assert len(arrays["ids"]) == 3


def test_scores_of_an_older_model_give_way_to_those_of_the_present_one(run):
    evaluate(run, 2, 5)
    scores = json.loads((run / "scores.json").read_text())
    scores["test"]["checkpoint_step"] -= 1  # the run was evaluated, and then trained further
    (run / "scores.json").write_text(json.dumps(scores))
    evaluate(run, 2, 3)
    assert best(run) == (3, 2) and kept(run) == [(3, 2), (5, 2), (5, 2)]


def test_a_damaged_scores_json_is_one_line_before_the_work(run, capsys):
    (run / "scores.json").write_text("[1")
    assert cli.main(["evaluate", str(run), *COMMON]) == 1
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "scores.json is damaged" in said.err and not [*run.glob("evaluation-*")]


def test_a_sweep_finds_its_answer_beside_a_better_one(run):
    evaluate(run, 4, 30)
    assert not is_scored(run, 2, 3)
    evaluate(run, 2, 3)
    assert not is_scored(run, 2, 3, estimates=["refine-anneal-200"])
    assert is_scored(run, 2, 3) and is_scored(run, 4, 30, [4]) and not is_scored(run, 2, 4)


def test_gaps_of_different_settings_live_side_by_side(run, capsys):
    gap(run, "--k", 3, "--steps", 2, "--examples", 4, "--worst", 2)
    sheet = (run / "gap-worst.png").read_bytes()
    gap(run, "--k", 2, "--steps", 2, "--examples", 2, "--worst", 1)
    assert "gap.json stays with 4 images, k = 3" in capsys.readouterr().out
    gap(run, "--k", 3, "--steps", 3, "--examples", 2)
    entry = json.loads((run / "gap.json").read_text())
    assert (entry["examples"], entry["k"], entry["steps"]) == (4, 3, 2)
    assert kept(run, "gap-test-*.json") == [(2, 2), (2, 3), (4, 3)]
    assert (run / "gap-worst.png").read_bytes() == sheet
    gap(run, "--k", 3, "--steps", 3, "--examples", 4)
    assert json.loads((run / "gap.json").read_text())["steps"] == 3


def test_a_gap_of_an_earlier_version_is_gone_on_with_and_kept(run):
    gap(run, "--k", 3, "--steps", 2, "--examples", 4)
    (store,) = run.glob("gap-test-*.jsonl")
    store.rename(run / "gap-test.jsonl")  # as an earlier version named it
    before = (run / "gap-test.jsonl").read_bytes()
    entry = json.loads((run / "gap.json").read_text())
    for name in ("k", "steps", "seed", "checkpoint_step"):
        entry.pop(name)
    (run / "gap.json").write_text(json.dumps(entry))
    gap(run, "--k", 3, "--steps", 2, "--examples", 3)
    assert (run / "gap-test.jsonl").read_bytes() == before and not [*run.glob("gap-test-*.jsonl")]  # all was there
    gap(run, "--k", 2, "--steps", 2, "--examples", 3)  # another question is not refused
    assert [*run.glob("gap-test-*.jsonl")]


@pytest.mark.parametrize("entry", [{"k": "../../x"}, {"k": True, "iwae": [1]}, {"examples": 1 << 70, "seed": None}])
def test_the_name_of_a_file_is_made_of_numbers_whatever_an_entry_holds(entry):
    assert results.make_name("evaluation", "test", entry).startswith("evaluation-test-step0-k0-n0-")
    assert results.make_order_key(entry, entry) == (True, 0, 0, 0, 0)


def test_the_report_takes_the_best_result_and_says_which(run, tmp_path):
    evaluate(run, 4, 30)
    evaluate(run, 2, 2)
    assert cli.main(["report", str(run), "-o", str(tmp_path / "report")]) == 0
    assert "test: 30 images, k = 4, the best of 2" in (tmp_path / "report/tables/digits-runs.md").read_text()


def keep_one(folder, split, barrier):
    barrier.wait()
    results.keep_scores(folder, split, {"k": 5, "examples": 3, "checkpoint_step": 1}, b"")


def test_evaluations_that_end_at_once_are_all_in_scores_json(tmp_path, monkeypatch):
    """Each reads the file and writes it back with its own split; slow writing makes them meet every time."""
    write = results._write
    monkeypatch.setattr(results, "_write", lambda *words: (time.sleep(0.02), write(*words)))
    splits = [f"split{i}" for i in range(4)]
    barrier = threading.Barrier(len(splits))
    threads = [threading.Thread(target=keep_one, args=(tmp_path, split, barrier)) for split in splits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.read_entry(tmp_path / "scores.json")) == splits
