"""Runs that end after so many seconds of updates: bsvi.Training(seconds=...), bsvi train --seconds, bsvi sweep --equal-time."""

import json

import pytest
import torch

import bsvi
from bsvi.cli import main
from bsvi.commands.sweep_flags import parse, share_time
from bsvi.commands.sweep_plan import find_spent, make_plan
from bsvi.experiments.config import Experiment
from bsvi.report.experiments import group_runs
from bsvi.report.runs import read_runs
from bsvi.report.settings import read_settings
from bsvi.sweeps.jobs import Job
from tests.oracles import BernoulliDecoder


def make_model():
    torch.manual_seed(0)
    return bsvi.VAE(torch.nn.Linear(6, 4), BernoulliDecoder(2, 6))


def run(folder, valid=None, **changes):
    settings = bsvi.Training(**{"steps": 10**6, "valid_every": 10**6, "patience": 0, **changes})
    x = torch.ones(5, 6)
    return bsvi.train(make_model(), bsvi.objective("bsvi", k=2), [x], valid, settings, folder)


def read_lines(folder, split):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def test_a_run_ends_when_its_seconds_are_used_up_and_is_looked_at(tmp_path):
    result = run(tmp_path / "run", [torch.ones(5, 6)], seconds=0.3)
    assert (result.stopped, result.finished) == ("seconds", True)
    last = read_lines(tmp_path / "run", "train")[-1]
    assert last["step"] == result.steps == read_lines(tmp_path / "run", "valid")[-1]["step"]
    # it ends with the update in which the budget is reached: no sooner, and at most a few updates (of 300) later
    assert last["spent"] >= 0.3 * (1 - 2 / result.steps)


def test_the_seconds_go_on_where_a_run_was_left(tmp_path):
    spent, starts = [], 0
    while starts < 500:
        result, starts = run(tmp_path / "run", seconds=0.05, time_limit=0.004, log_every=1), starts + 1
        spent.append(read_lines(tmp_path / "run", "train")[-1]["spent"])
        if result.finished:
            break
    assert result.stopped == "seconds" and starts > 1
    assert spent == sorted(spent)


def test_a_run_whose_seconds_are_over_takes_no_more_steps(tmp_path):
    first = run(tmp_path / "run", seconds=0.05)
    (tmp_path / "run" / "result.json").unlink()
    assert run(tmp_path / "run", seconds=0.05).steps == first.steps


@pytest.mark.parametrize("method", [["--method", "vae", "--steps", "1000000"], ["--phases", "vae:3,bsvi-sir:999999"]])
def test_the_command_takes_seconds(method, tmp_path):
    words = [
        "train",
        "digits",
        *method,
        "--seconds",
        "0.5",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["stopped"] == "seconds" and 0 < result["steps"] < 10**5
    assert main(words) == 0  # finished before: as it is
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result


def test_a_sweep_gives_every_run_the_same_seconds(tmp_path):
    words = [
        "digits",
        "--methods",
        "vae,bsvi-sir,vae:8000+bsvi-sir:999999999",
        "--equal-time",
        "100",
        "--runs",
        str(tmp_path),
    ]
    arguments, rest = parse(words)
    jobs = make_plan(arguments, share_time(100.0, rest))
    assert arguments.equal_time == [100.0] and len(jobs) == 3
    assert all(job.experiment.seconds == 100.0 and job.experiment.patience == 0 for job in jobs)
    assert all(job.experiment.steps >= 10**9 - 1 for job in jobs)


SWEEP = """sweep digits --net.kind mlp --net.hidden 8 --net.latent 2 --methods vae,bsvi-sir --equal-time 0.6,0.2 --threads 1
--jobs 1 --k 3 --examples 10 --iwae --logger none --runs"""


def test_several_budgets_make_a_table_each_and_runs_go_on_from_the_last_one(tmp_path, capsys):
    words = [*SWEEP.split(), str(tmp_path)]
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if "updates, in" in line] == [
        f"{seconds} seconds of updates, in {tmp_path / f'{seconds}s'}" for seconds in (0.2, 0.6)
    ]
    assert main(words) == 0
    for method in ("vae", "bsvi-sir"):
        first, last = ((tmp_path / f"{seconds}s/digits/{method}-seed0") for seconds in (0.2, 0.6))
        ends = [json.loads((run / "result.json").read_text()) for run in (first, last)]
        lines = [
            [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (first, last)
        ]
        assert 0 < ends[0]["steps"] < ends[1]["steps"] and [end["stopped"] for end in ends] == ["seconds"] * 2
        assert [lines[i][-1]["spent"] >= seconds for i, seconds in enumerate((0.2, 0.6))] == [True, True]
        learned = lines[0][:-1]  # what was learned in the first budget is not learned again
        assert lines[1][: len(learned)] == learned
        origin = json.loads((last / "config.json").read_text())["origin"]
        assert origin["folder"] == str(first) and origin["step"] == ends[0]["steps"] and origin["only_longer"] is True
        assert (last / "scores.json").exists()
    found = group_runs(read_runs([tmp_path / "0.6s"])[0])
    assert len(found) == 1 and {row.method for row in found[0].rows} == {"vae", "bsvi-sir"}
    assert "origin" not in read_settings(found[0].rows[0].runs[0])  # forks of different methods are compared
    capsys.readouterr()
    assert main(words) == 0 and capsys.readouterr().out.count("2 finished, 0 to do") == 2
    assert main([*words, "--dry-run"]) == 0 and "finished" in capsys.readouterr().out


def test_what_is_left_of_a_budget_is_what_the_plan_says(tmp_path):
    job = Job(Experiment(), tmp_path / "new", [], [], bool, source=tmp_path / "old")
    assert find_spent(job) == 0.0
    for name, spent in (("old", 4.5), ("new", 7.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(f'{{"split": "valid", "step": 3, "spent": {spent}}}\n')
        assert find_spent(job) == spent


def test_several_budgets_and_a_queue_that_nobody_waits_for_are_refused():
    with pytest.raises(ValueError, match="the second of two budgets waits for the first"):
        parse(["digits", "--equal-time", "1,2", "--on", "slurm", "--submit-only"])


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "", "1,", "1,0", "1 2", "ten"])
def test_no_seconds_are_refused(seconds):
    with pytest.raises(ValueError, match="--equal-time takes the seconds"):
        parse(["digits", f"--equal-time={seconds}"])
