"""What a sweep takes as finished, and the mistakes that it tells in one line before anything starts."""

import json

import pytest

from bsvi.commands import sweep_plan
from bsvi.commands.sweep import parse
from bsvi.commands.sweep_plan import count_updates, make_plan, measure_updates
from bsvi.experiments.config import EXPERIMENTS
from bsvi.sweeps.jobs import Job, is_scored, run_jobs
from tests.test_cli import told


@pytest.fixture
def scored(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"data": {"test": 400}}))
    scores = {"k": 500, "examples": 20, "iwae": {"500": {}, "1000": {}}}
    (tmp_path / "scores.json").write_text(json.dumps({"test": scores}))
    return tmp_path


@pytest.mark.parametrize(
    ("k", "examples", "iwae", "answered"),
    [
        (500, 20, None, True),
        (500, 10, [500], True),
        (500, 20, [], True),
        (100, 20, None, False),
        (500, 30, None, False),
        (500, None, None, False),  # 20 of 400 images are not all
        (500, 20, [500, 2000], False),
    ],
)
def test_scores_count_only_where_they_answer_what_is_asked(scored, k, examples, iwae, answered):
    assert is_scored(scored, k, examples, iwae) is answered


def test_more_images_than_there_are_means_all(scored):
    scores = json.loads((scored / "scores.json").read_text())
    scores["test"]["examples"] = 400
    (scored / "scores.json").write_text(json.dumps(scores))
    assert is_scored(scored, 500, 10_000) and is_scored(scored, 500, None)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--jobs", "many"], "--jobs takes auto or a number"),
        (["--jobs", "0"], "--jobs takes auto or a number"),
        (["--k", "0"], "--k must be from 1 to 1,000,000,000,000, got 0"),
        (["--k", str(10**30)], "--k must be from 1 to"),
        (["--k", "-5"], "--k must be from 1 to 1,000,000,000,000, got -5"),
        (["--examples", "0"], "--examples must be from 1"),
        (["--iwae", "10", "-1"], "--iwae must be from 1 to 1,000,000,000,000, got -1"),
        (["--threads", "0"], "--threads must be from 1 to 1,024, got 0"),
        (["--out", "mine"], "--out is for one run, a sweep has several; use --runs"),
        (["--out=mine"], "--out is for one run"),
        (["--method", "vae"], "use --methods"),
        (["--seed", "3"], "use --seeds"),
        (["--fork", "new"], "fork them one by one"),
        (["--seeds", f"{2**64}"], "--seeds takes at most 10,000 numbers from 0 to"),
        (["--seeds", "0:1000000000000"], "--seeds takes at most 10,000 numbers from 0 to"),
        (["--address", "localhost:6379"], "--address goes with --on ray"),
        (["--gpus-per-run", "1"], "--gpus-per-run goes with --on ray or --on slurm"),
        (["--on", "ray", "--partition", "long"], "--partition goes with --on slurm"),
        (["--on", "ray", "--gpus-per-run", "-1"], "must be a number above 0"),
        (["--on", "ray", "--gpus-per-run", "1.5"], "must be whole"),
        (["--on", "ray", "--address", "nowhere"], "--address takes HOST:PORT"),
        (["--on", "ray", "--address", "localhost:1"], "no Ray at localhost:1"),
        (["--on", "slurm"], "there is no sbatch on this machine"),
        (["--on", "slurm", "--time-limit", "soon"], "--time-limit takes minutes, HH:MM:SS"),
        (["--on", "slurm", "--gpus-per-run", "0.5"], "must be whole"),
        (["--on", "slurm", "--slurm-option", "time=5"], "write --time-limit"),
        (["--on", "slurm", "--slurm-option", "mem="], "KEY=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_with_what_to_do(capsys, tmp_path, monkeypatch, words, hint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no sbatch, wherever the tests run
    code, _, err = told(capsys, "sweep", "digits", *words)
    assert code == 1
    assert hint in err
    assert err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("words", [["--steps", "many"], ["--svi.stepz", "3"], ["--time-limit", "-1"]], ids=" ".join)
def test_a_flag_of_training_that_is_wrong_is_told_at_once_by_the_verb_that_was_typed(
    capsys, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    code, _, err = told(capsys, "sweep", "digits", *words)
    assert code == 2 and err.startswith("bsvi sweep: ") and err.count("\n") == 1 and not [*tmp_path.iterdir()]


def finished(folder, method="vae", **changes):
    """A run folder of a finished and evaluated run, as far as a sweep looks."""
    config = EXPERIMENTS["digits"].model_copy(update={"method": method, **changes}).model_dump(mode="json")
    about = {"config": config, "versions": {}, "data": {"test": 400}}
    scores = {"k": 500, "examples": 400, "iwae": {}}
    folder.mkdir(parents=True)
    for name, value in {
        "config": about,
        "result": {"seconds": 0, "decoder_calls": 0},
        "scores": {"test": scores},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def test_a_finished_run_counts_only_if_its_configuration_is_the_one_asked_for(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs/digits/vae-seed0")
    finished(tmp_path / "runs/digits/svi-seed0", "svi")
    words = ["sweep", "digits", "--methods", "vae,svi"]
    code, out, _ = told(capsys, *words)
    assert code == 0 and "2 finished, 0 to do" in out
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    for changed, named in {
        ("--steps", "2000"): "(steps: 1000 -> 2000)",
        ("--optim.lr", "0.1"): "(optim.lr: 0.001 -> 0.1)",
        ("--data.name", "omniglot"): "(data.name: digits -> omniglot)",
    }.items():
        for more in ([], ["--dry-run"]):
            code, out, err = told(capsys, *words, *changed, *more)
            assert code == 1 and out == "" and err.count("\n") == 1
            assert f"vae-seed0 (and 1 more runs) was started with another configuration {named}" in err
            assert "another --runs" in err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_result_without_its_configuration_is_nobodys(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs/digits/vae-seed0")
    (tmp_path / "runs/digits/vae-seed0/config.json").unlink()
    code, _, err = told(capsys, "sweep", "digits", "--methods", "vae")
    assert code == 1 and "holds result.json but no config.json" in err


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"seconds": null, "decoder_calls": "3"}'])
def test_a_damaged_result_is_no_reason_not_to_plan(capsys, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs/digits/vae-seed0")
    (tmp_path / "runs/digits/vae-seed0/result.json").write_text(text)
    code, out, err = told(capsys, "sweep", "digits", "--methods", "vae,svi", "--dry-run", "--net.kind", "pixelcnn")
    assert code == 0 and "svi seed 0" in out and err == ""


def test_a_sweep_gives_runs_the_threads_it_was_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr("bsvi.commands.sweep.run_jobs", lambda plan, *_: seen.extend(plan))
    from bsvi.cli import main

    assert main(["sweep", "digits", "--methods", "vae", "--threads", "3"]) == 0
    assert seen[0].train[-2:] == seen[0].evaluate[-2:] == ["--threads", "3"] and seen[0].train.count("--threads") == 1


@pytest.mark.parametrize(("engine", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_that_is_not_installed_is_named_with_its_extra(capsys, tmp_path, monkeypatch, engine, module):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    code, _, err = told(capsys, "sweep", "digits", "--on", engine)
    assert code == 1
    assert f'pip install "bsvi[{engine}]"' in err and err.count("\n") == 1


def test_a_run_that_is_named_twice_is_done_once(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = told(capsys, "sweep", "digits", "--methods", "vae,vae", "--seeds", "0,0", "--dry-run")
    assert code == 0 and out.startswith("1 runs of digits")


def test_evaluation_runs_on_the_device_and_with_the_compiler_that_training_was_told():
    (job,) = make_plan(*parse(["digits", "--methods", "vae", "--device", "cpu", "--compile", "on"]))
    words = job.evaluate
    assert words[words.index("--device") + 1] == "cpu"
    assert words[words.index("--compile") + 1] == "on"


def test_a_start_that_fails_leaves_no_folder_behind(tmp_path):
    words = ["evaluate", str(tmp_path / "nowhere")]
    job = Job(EXPERIMENTS["digits"], tmp_path / "run", words, words, lambda: True)
    run_jobs([job], 1, lambda jobs: None, pause=0.1)
    assert job.stage == "failed" and "name a run folder" in job.problem and not [*tmp_path.iterdir()]


def test_a_run_that_another_sweep_has_finished_meanwhile_is_done(tmp_path):
    first, second = (
        Job(EXPERIMENTS["digits"], tmp_path / name, ["--version"], ["--version"], lambda: True) for name in "ab"
    )
    looks = []

    def show(jobs):
        (second.folder).mkdir(exist_ok=True)
        (second.folder / "result.json").write_text("{}")
        looks.append(jobs)
        assert len(looks) < 300, "the sweep waits for ever"

    run_jobs([first, second], 1, show, pause=0.1)
    assert (first.stage, second.stage) == ("failed", "done")


def test_a_dry_run_counts_the_updates_of_every_phase_that_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (job,) = make_plan(*parse(["digits", "--methods", "vae:30+bsvi:70+vae:5", "--svi.steps", "3"]))
    for done, left in {0: (35, 70), 10: (25, 70), 30: (5, 70), 90: (5, 10), 102: (3, 0)}.items():
        monkeypatch.setattr(type(job), "step", lambda self, done=done: done)
        assert count_updates(job) == {"vae": left[0], "bsvi": left[1]}


def test_a_dry_run_takes_the_pace_of_finished_runs_and_times_the_other_methods(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs/digits/vae-seed0")
    (tmp_path / "runs/digits/vae-seed0/result.json").write_text('{"seconds": 50, "steps": 1000}')
    plan = make_plan(*parse(["digits", "--methods", "vae,svi,bsvi", "--seeds", "0,1"]))
    timed = []
    monkeypatch.setattr(sweep_plan, "time_update", lambda e, method: timed.append(method) or 0.25)
    assert measure_updates(plan, {"vae", "svi", "bsvi"}, 1) == {"vae": 0.05, "svi": 0.25, "bsvi": 0.25}
    assert sorted(timed) == ["bsvi", "bsvi-sir", "svi"]
    monkeypatch.setattr(sweep_plan, "time_update", lambda e, method: 2.2)  # too slow to time every method
    assert measure_updates(plan, {"bsvi"}, 1)["bsvi"] == pytest.approx(2.2 * 10 / 11)
