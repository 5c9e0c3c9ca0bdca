"""Sweeps through submitit: with its local executor in place of SLURM, and the batch script that SLURM would get."""

import json
import os
import re
import signal
import stat
import subprocess

import pytest

from bsvi.cli import main
from bsvi.sweeps.on_slurm import CLUSTER
from tests.sweeps.cluster import family, processes, sweeps, wait_for

pytest.importorskip("submitit", reason="the extra slurm is not installed")

TINY = ["--net.kind", "mlp", "--net.hidden", "16", "--net.latent", "4", "--svi.steps", "2", "--logger", "none"]
TINY += ["--k", "5", "--examples", "20", "--iwae", "5", "--on", "slurm", "--log-every", "20"]


@pytest.fixture
def sweep(tmp_path):
    """Sweeps with submitit's local executor in place of SLURM."""
    with sweeps(tmp_path, **{CLUSTER: "local"}) as start:
        yield lambda *words: start(*words, *TINY)


def ended(process, seconds=200):
    """Exit code and what was said."""
    return process.wait(seconds), process.said.read_text()


def steps_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["split"] == "train"]


def worker_of(controller):
    """The process of submitit that runs our code, and whose child trains."""
    return wait_for(lambda: [pid for pid in family(controller)[1:] if processes()[pid][0] == controller])[0]


def test_a_preempted_job_saves_requeues_and_goes_on_and_is_never_submitted_twice(tmp_path, sweep):
    steps, folder = 1500, tmp_path / "runs/digits/vae-seed0"
    words = ["--methods", "vae", "--steps", steps, "--valid-every", steps, "--save-every", 1000]
    code, out = ended(sweep(*words, "--submit-only"))
    assert code == 0 and "SLURM jobs" in out
    ids = json.loads((tmp_path / "runs/digits/slurm/jobs.json").read_text())
    job = int(ids["vae-seed0"])
    wait_for((folder / "metrics.jsonl").exists)
    os.kill(worker_of(job), signal.SIGUSR1)  # as SLURM does before the time limit

    code, out = ended(sweep(*words, "--submit-only"))  # the same command again
    assert code == 0 and json.loads((tmp_path / "runs/digits/slurm/jobs.json").read_text()) == ids
    follower = sweep(*words)
    code, out = ended(follower)
    assert code == 0 and f"SLURM jobs {job};" in out and "1 of 1 runs are complete" in out
    notes = (folder / "log.txt").read_text()
    saved = re.search(r"saved at step (\d+) \(SIGUSR1\)", notes)
    assert saved and f"resumed at step {saved[1]}" in notes and 0 < int(saved[1]) < steps
    assert len(re.findall(r"process \d+: digits", notes)) == 2
    assert steps_of(folder) == list(range(20, steps + 1, 20))
    assert json.loads((folder / "scores.json").read_text())["test"]["examples"] == 20
    log = (tmp_path / f"runs/digits/slurm/logs/{job}_0_log.err").read_text()
    assert "Requeued job" in log + (tmp_path / f"runs/digits/slurm/logs/{job}_0_log.out").read_text()


def test_interrupting_leaves_the_jobs_alone_and_a_failed_one_is_named(tmp_path, sweep):
    folder = tmp_path / "runs/digits/vae-seed0"
    bad = tmp_path / "runs/digits/svi-seed0"
    bad.mkdir(parents=True)
    (bad / "config.json").write_text("{")
    words = ["--methods", "vae,svi", "--steps", 600, "--valid-every", 300]
    first = sweep(*words)
    wait_for((folder / "metrics.jsonl").exists)
    first.send_signal(signal.SIGINT)
    code, out = ended(first)
    assert code == 130 and "the jobs stay in SLURM's queue" in out
    code, out = ended(sweep(*words))
    assert code == 1 and "failed: svi seed 0: bsvi train:" in out and "1 of 2 runs are complete" in out
    assert len(re.findall(r"process \d+: digits", (folder / "log.txt").read_text())) == 1  # nobody disturbed it


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """sbatch, squeue and srun that take note of what they are given."""
    programs = tmp_path / "programs"
    programs.mkdir()
    script = f"#!/bin/sh\ncp $1 {tmp_path}/$(date +%s%N).sh\necho Submitted batch job 77\n"
    for name, text in {"sbatch": script, "srun": "#!/bin/sh\n", "squeue": f"#!/bin/sh\ncat {tmp_path}/queue\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    (tmp_path / "queue").write_text("")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return programs


def submit(capsys, *words):
    code = main(["sweep", "digits", "--submit-only", *TINY, *map(str, words)])
    out = capsys.readouterr()
    return code, out.out + out.err


def test_the_batch_script_asks_for_what_the_flags_say(tmp_path, capsys, stand_ins):
    words = ["--methods", "vae,svi", "--partition", "long", "--time-limit", "12:30:00", "--gpus-per-run", 2]
    words += ["--cpus-per-run", 4, "--slurm-option", "account=me", "--slurm-option", "mem=8G", "--jobs", 1]
    code, out = submit(capsys, *words)
    assert code == 0 and "SLURM jobs 77_0, 77_1; logs in" in out
    (script,) = tmp_path.glob("*.sh")
    lines = set(script.read_text().splitlines())
    wanted = ["time=750", "partition=long", "requeue", "signal=USR1@120", "gpus-per-node=2", "cpus-per-task=4"]
    wanted += ["account=me", "mem=8G", "array=0-1%1", "open-mode=append", "job-name=bsvi-digits"]
    assert {f"#SBATCH --{flag}" for flag in wanted} <= lines
    assert "export SUBMITIT_PREEMPT_SIGNAL=USR1" in lines
    subprocess.run(["sh", "-n", script], check=True)


def test_only_what_is_not_in_the_queue_is_submitted(tmp_path, capsys, stand_ins):
    assert submit(capsys, "--methods", "vae,svi")[0] == 0
    (tmp_path / "queue").write_text("77_0 PENDING\n77_1 RUNNING\n12 RUNNING\n")
    assert submit(capsys, "--methods", "vae,svi")[0] == 0
    assert len(list(tmp_path.glob("*.sh"))) == 1
    (tmp_path / "queue").write_text("77_1 COMPLETING\n")
    assert submit(capsys, "--methods", "vae,svi,iwae")[0] == 0
    assert len(list(tmp_path.glob("*.sh"))) == 2
    ids = json.loads((tmp_path / "runs/digits/slurm/jobs.json").read_text())
    assert ids == {"svi-seed0": "77_1", "vae-seed0": "77_0", "iwae-seed0": "77_1"}  # the stand-in knows one number
    assert "#SBATCH --array=0-1%2" in max(tmp_path.glob("*.sh")).read_text()


@pytest.mark.parametrize(
    ("program", "says", "line"),
    [
        ("sbatch", "error: invalid partition specified: long", "SLURM did not take the jobs"),
        ("squeue", "error: Unable to contact slurm controller", "squeue failed"),
    ],
)
def test_what_slurm_refuses_is_one_line(tmp_path, capsys, stand_ins, program, says, line):
    (stand_ins / program).write_text(f"#!/bin/sh\necho '{program}: {says}' >&2\nexit 1\n")
    code, out = submit(capsys, "--methods", "vae")
    assert code == 1 and line in out and says.removeprefix("error: ") in out
    assert "Traceback" not in out and len(out.strip().splitlines()) == 2
