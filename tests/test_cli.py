"""The command line as a person meets it: quick help, one line for a mistake, and a whole small story from train to report."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bsvi.cli import VERBS, main
from bsvi.runs.folder import Run
from bsvi.sweeps.attempt import wait_until_free
from tests.pace import cpu_seconds, slowness

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
    assert cpu_seconds([sys.executable, "-m", "bsvi", *words]) < slowness()


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
        (["train", "digits", "--seed", str(2**64)], 2, "less than or equal to 18446744073709551615"),
        (["train", "digits", "--out", ""], 2, "a word is empty"),
        (["train", "digits", "--optim.lr", "1e300"], 2, "lr Input should be less than"),
        (["train", "digits", "--optim.max-grad-norm", "inf"], 2, "max_grad_norm Input should be less than"),
        (["train", "digits", "--net.hidden", str(10**30)], 2, "hidden Input should be less than"),
        (["train", "digits", "--net.kernels", str(10**30 + 1)], 2, "Input should be less than"),
        (["train", "digits", "--batch-size", str(10**12)], 2, "batch_size Input should be less than"),
        (["train", "digits", "--threads", str(10**6)], 2, "threads Input should be less than"),
        (["plan", "digits", "--steps", "many"], 2, "bsvi plan: "),
        (["plan", "digits", "--device", "A100", "--seeds", str(10**30)], 1, "--seeds takes at most 10,000 numbers"),
        (["plan", "digits", "--device", "A100", "--iwae", "0"], 1, "--iwae must be from 1"),
        (["plan", "digits", "--device", "A100", "--measure", "nan"], 1, "--measure must be from 0"),
        (["plan", "digits", "--device", "A100", "--json", "no/such.json"], 1, "name a file in a folder that exists"),
        (["sweep", "digits", "--methods", "vea"], 1, "The methods: vae"),
        (["sweep", "digits", "--seeds", "4:4"], 1, "names no seed"),
        (["sweep", "digts"], 2, "did you mean 'digits'"),
        (["data", "fetch", "cifar"], 1, "there are digits"),
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


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_flag_is_one_line_and_exit_code_2(capsys, verb):
    known = {"sweep": ["digits"], "plan": ["digits"], "train": ["digits"], "bench": ["memory"], "data": ["list"]}
    code, out, err = told(capsys, verb, *known.get(verb, ["nowhere"]), "--no-such-flag")
    assert code == 2 and out == "" and err.startswith(f"bsvi {verb}") and err.count("\n") == 1
    assert "--no-such-flag" in err


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
    code, out, _ = told(capsys, "gap", run, "--k", 5, "--examples", 20, "--threads", 1, "--save", "--effort", "quick")
    optimum = next(run.glob("gap-test-*-optimum.npz"))
    assert code == 0 and str(optimum) in out and "s per image" in out and len(np.load(optimum)["lambda_"]) == 20
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


def shell(line, **environment):
    """Exit code, stdout and stderr of a shell command in which BSVI is this program."""
    line = line.replace("BSVI", f"{sys.executable} -m bsvi")
    done = subprocess.run(["bash", "-c", line], capture_output=True, env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("BSVI --help >&-", 0),
        ("BSVI data list >&-", 0),
        ("BSVI data list >&- 2>&- <&-", 0),
        ("BSVI nothing 2>&-", 2),
        ("BSVI evaluate nowhere >&- 2>&-", 1),
        ("BSVI --help | true; exit ${PIPESTATUS[0]}", 0),
        ("BSVI evaluate nowhere 2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}", 1),
    ],
)
def test_closed_streams_are_no_error_of_their_own(line, code):
    got, out, err = shell(line)
    assert got == code and (out, err) == (b"", b"")


def test_a_full_disk_behind_standard_output_is_one_line():
    code, _, err = shell("BSVI data list > /dev/full", PYTHONUNBUFFERED="")
    assert code == 1 and err == b"bsvi data: standard output: No space left on device\n"


def test_what_a_closed_stream_was_is_not_given_to_a_file(tmp_path):
    """The lock would be file 1, and what is printed would go into it."""
    words = " ".join([*TINY, "--out", str(tmp_path / "run")])
    code, _, err = shell(f"BSVI train digits {words} >&- <&-")
    assert code == 0, err
    assert (tmp_path / "run/lock").read_bytes() == b""
    assert "step" not in (tmp_path / "run/config.json").read_text().replace("steps", "")


def test_a_terminal_that_knows_ascii_only_gets_every_line(tmp_path):
    name = tmp_path / "ausgänge-\udcff"
    for line in ("BSVI train --resume", "BSVI evaluate", "BSVI report"):
        code, out, err = shell(f"{line} '{os.fsencode(name).decode('latin1')}'", PYTHONIOENCODING="ascii")
        assert code == 1 and err.count(b"\n") == 1 and b"ausg" in err and b"Traceback" not in err
        assert err.isascii() and out == b""


def test_out_of_memory_is_one_line_that_says_what_to_lower(capsys, tmp_path, monkeypatch):
    import torch

    def allocate(*_):
        torch.empty(1 << 60)

    def small(*_):
        raise MemoryError

    for verb, what in {"train": "--batch-size, --svi.steps", "evaluate": "--batch-size", "sweep": "--jobs"}.items():
        for way in (allocate, small):
            monkeypatch.setattr(f"bsvi.commands.{verb}.main", way)
            code, _, err = told(capsys, verb, "digits")
            assert code == 1 and err.startswith(f"bsvi {verb}: out of memory") and err.count("\n") == 1
            assert f"lower {what}" in err


def test_asking_git_for_the_revision_takes_no_lock(monkeypatch):
    from bsvi.commands import about

    asked = []
    monkeypatch.setattr(about.subprocess, "run", lambda words, **_: asked.append(words) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        about.find_revision()
    assert asked[0][:2] == ["git", "--no-optional-locks"]


def test_a_reader_who_leaves_is_no_error(tmp_path):
    words = [sys.executable, "-m", "bsvi", "data", "list"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
