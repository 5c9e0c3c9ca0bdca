"""The command line as a person meets it: quick help, one line for a mistake, and a whole small story from train to report."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bsvi.cli import VERBS, main
from bsvi.engines.attempt import wait_until_free
from bsvi.runs import Run

TINY = ["--net.kind", "mlp", "--net.hidden", "16", "--net.latent", "4", "--svi.steps", "2", "--steps", "20"]
TINY += ["--valid-every", "10", "--log-every", "5", "--logger", "none", "--threads", "1"]


def told(capsys, *words):
    """Exit code and what was printed."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as exit_:
        code = exit_.code
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["train", "omniglot", "--help"], ["sweep", "--help"]], ids=" ".join
)
def test_help_answers_in_under_a_second(words):
    seconds = []  # of the processor: what other work on the machine takes is not counted
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "bsvi", *words], capture_output=True, text=True)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        seconds.append(used)
        assert done.returncode == 0
    assert min(seconds) < 1.0


def test_every_verb_has_help_and_is_listed(capsys):
    code, out, _ = told(capsys, "--help")
    assert code == 0 and all(verb in out for verb in VERBS)
    for verb in VERBS:
        code, out, _ = told(capsys, verb, "--help")
        assert code == 0 and "usage" in out, verb


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["trian"], 2, "did you mean 'train'"),
        (["train"], 2, "name an experiment first"),
        (["train", "digts"], 2, "did you mean 'digits'"),
        (["train", "--resume"], 2, "--resume needs a run folder"),
        (["train", "--resume", "nowhere"], 1, "holds no config.json"),
        (["train", "digits", "--config", "nowhere.toml"], 1, "name an existing TOML file"),
        (["evaluate", "nowhere"], 1, "name a run folder"),
        (["gap", "nowhere"], 1, "name a run folder"),
        (["sample", "nowhere"], 1, "name a run folder"),
        (["sweep", "digits", "--methods", "vea"], 1, "the methods: vae"),
        (["sweep", "digits", "--seeds", "4:4"], 1, "names no seed"),
        (["sweep", "digts"], 2, "did you mean 'digits'"),
        (["data", "fetch", "mnist"], 1, "there are digits"),
        (["data", "check", "nowhere"], 1, "nowhere"),
        (["report", "nowhere"], 1, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_with_what_to_do(capsys, tmp_path, monkeypatch, words, code, hint):
    monkeypatch.chdir(tmp_path)
    got, _, err = told(capsys, *words)
    assert got == code
    assert hint in err
    assert err.count("\n") == 1 and "Traceback" not in err


def test_train_evaluate_gap_sample_and_report(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/digits/bsvi-sir-seed0"
    assert told(capsys, "train", "digits", *TINY)[0] == 0
    code, out, _ = told(capsys, "train", "digits", *TINY)
    assert code == 0 and out.startswith("finished before")
    code, out, _ = told(capsys, "evaluate", run, "--k", 5, "--examples", 30, "--threads", 1)
    assert code == 0 and "log_likelihood" in out
    scores = json.loads((run / "scores.json").read_text())["test"]
    assert scores["k"] == 5 and scores["examples"] == 30 and list(scores["iwae"]) == ["5", "10", "15", "20", "25"]
    assert told(capsys, "gap", run, "--k", 5, "--examples", 20, "--threads", 1)[0] == 0
    code, out, _ = told(capsys, "sample", run, "--rows", 2, "--columns", 3)
    assert code == 0 and (run / "samples/latents.png").exists() and (run / "samples/latents.npz").exists()
    assert told(capsys, "report", "runs", "-o", "report")[0] == 0
    assert (tmp_path / "report/index.html").stat().st_size > 10_000


def test_a_sweep_does_what_is_missing_and_names_what_failed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        "digits",
        "--methods",
        "vae,bsvi-sir",
        "--seeds",
        "0",
        "--k",
        3,
        "--examples",
        20,
        "--jobs",
        2,
        *TINY[:-2],
    ]
    code, out, _ = told(capsys, *words, "--dry-run")
    assert code == 0 and "2 to do" in out and "to train" in out
    broken = tmp_path / "runs/digits/vae-seed0"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    code, out, err = told(capsys, *words)
    assert code == 1 and "failed: vae seed 0" in err and "1 of 2 runs" in out
    (broken / "config.json").unlink()
    code, out, _ = told(capsys, *words)
    assert code == 0 and "1 finished, 1 to do" in out
    code, out, _ = told(capsys, *words)
    assert code == 0 and "2 finished, 0 to do" in out


def test_a_run_that_its_time_limit_ends_is_no_failure_of_a_sweep(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "digits", "--methods", "vae", "--k", 2, "--examples", 5, *TINY[:-2], "--time-limit"]
    code, out, err = told(capsys, *words, "1e-9")
    assert code == 0 and err == ""
    assert (
        "vae seed 0: saved at step " in out
        and "0 of 1 runs are complete" in out
        and "run the same command again" in out
    )
    code, out, _ = told(capsys, *words, "1000")
    assert code == 0 and "1 of 1 runs are complete" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_killed_sweep_leaves_no_process_behind_and_goes_on(tmp_path, number):
    words = ["sweep", "digits", "--methods", "vae,svi", "--k", "2", "--examples", "5", "--jobs", "2", *TINY[:-2]]
    words[words.index("--steps") + 1] = "100000"
    sweep = subprocess.Popen([sys.executable, "-m", "bsvi", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    folders = [tmp_path / "runs/digits" / f"{method}-seed0" for method in ("vae", "svi")]
    deadline = time.monotonic() + 120
    while not all((folder / "metrics.jsonl").exists() for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.1)
    sweep.send_signal(number)
    assert sweep.wait(60) == (143 if number == signal.SIGTERM else -9)
    for folder in folders:
        assert wait_until_free(folder, 60.0)  # it saves, and leaves
        with Run(folder) as run:
            assert run.load() is not None


def test_a_sample_is_a_function_of_its_seed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told(capsys, "train", "digits", *TINY)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert (
            told(
                capsys,
                "sample",
                "runs/digits/bsvi-sir-seed0",
                "--rows",
                2,
                "--columns",
                3,
                "--seed",
                seed,
                "--out",
                name,
            )[0]
            == 0
        )
    a, b, c = ((tmp_path / name / "prior.png").read_bytes() for name in "abc")
    assert a == b != c


def test_training_needs_no_writable_home(tmp_path):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "BSVI_CACHE_DIR")
    }
    words = [
        sys.executable,
        "-m",
        "bsvi",
        "train",
        "digits",
        *TINY,
        "--compile",
        "auto",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(words, env={**environment, "HOME": "/proc/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_who_leaves_is_no_error(tmp_path):
    words = [sys.executable, "-m", "bsvi", "data", "list"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
