"""What a sweep shows: stage, bound and time left of each run and of all, on any number of lines; and what Ctrl-C leaves."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time

import pytest
from rich.console import Console

from bsvi.commands.bar import Bar
from bsvi.commands.sweep import parse
from bsvi.commands.sweep_display import Display
from bsvi.commands.sweep_plan import make_plan
from bsvi.runs.store import Record
from bsvi.system.terminal import open_console


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_plan(*parse(["digits", "--seeds", "0:4", "--examples", "200"]))


def trains(job, step, seconds, bound=-45.125):
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "config.json").write_text(json.dumps({"data": {"test": 400}}))
    with open(job.folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"split": "train", "step": step, "seconds": seconds, "bound": bound}) + "\n")
    job.stage = "training"


def evaluates(job, images, seconds):
    import numpy as np

    (job.folder / "result.json").write_text("{}")
    job.stage = "evaluating"
    record = Record(job.folder / "evaluation-test-step5-k500.jsonl", {"k": 500})
    start = sum(len(ids) for ids, _ in record.parts)
    ids = np.arange(start, start + images)
    record.append((ids, {"elbo": np.zeros(images)}), [0] * images, seconds, set())
    record.close()


def shown(plan, height=24, width=100):
    """The lines of a display on a terminal of this size, after one look at all runs."""
    display = Display(plan, 2)
    display.console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height)
    display(plan)
    display.console.print(display.render())
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", display.console.file.getvalue()).splitlines()


def test_each_run_has_its_stage_bound_and_time_left_and_all_together_too(plan):
    trains(plan[0], 250, 50.0)  # 0.2 seconds a step, of 1000
    trains(plan[1], 1000, 200.0)
    evaluates(plan[1], 50, 10.0)  # 0.2 seconds an image, of 200
    plan[2].stage, plan[2].problem = "failed", "bsvi train: what was wrong"
    lines = shown(plan)
    assert re.search(r"vae seed 0 +training +\S+ 250/1000 +bound -45\.12 +2\.5 min left", lines[0])
    assert re.search(r"iwae seed 0 +evaluating +\S+ 50/200 images +bound -45\.12 +30 s left", lines[1])
    assert re.search(r"svi seed 0 +failed .* bsvi train: what was wrong", lines[2])
    # to come: 150 s of training and 40 s of evaluation; 30 s; and 200 + 40 s of each of the 29 others, by two at once
    seconds = (150 + 40 + 30 + 29 * 240) / 2
    assert lines[-1].startswith(
        f"32 runs, 3% done, about {seconds / 60:.0f} min left: 1 training, 1 evaluating, 29 waiting, "
    )


@pytest.mark.parametrize("height", [5, 24, 50])
@pytest.mark.parametrize("width", [60, 100])
def test_many_runs_fit_on_few_lines_with_those_first_that_run(plan, height, width):
    trains(plan[31], 10, 1.0)
    lines = shown(plan, height, width)
    assert len(lines) == min(height - 2, 33) and all(len(line) <= width for line in lines)
    assert sum("bsvi-sir-pi seed 3" in line and "training" in line for line in lines) == 1
    assert lines[-1].startswith("32 runs")


def test_images_are_counted_as_they_come(plan):
    trains(plan[0], 1000, 1.0)
    display = Display(plan, 2)
    for images, total in ((10, 10), (20, 30)):
        evaluates(plan[0], images, 1.0)
        display.last = None
        display(plan)
        assert display.seen[plan[0].name].images == total
    assert display.seen[plan[0].name].evaluation_left() == pytest.approx(2.0 / 30 * 170)


def test_damaged_files_are_no_reason_to_stop_showing(plan):
    trains(plan[0], 10, 1.0)
    for text in ('{"split": []}', '{"split": "train", "step": "x", "seconds": {}}', "\0", "[]"):
        (plan[0].folder / "metrics.jsonl").write_text(text + "\n")
        (plan[0].folder / "config.json").write_text(text)
        plan[0].stage = "evaluating"
        os.mkfifo(plan[0].folder / "evaluation-test-step1.jsonl")
        assert "vae seed 0" in shown(plan)[0]
        (plan[0].folder / "evaluation-test-step1.jsonl").unlink()


def test_without_a_terminal_each_change_is_a_line(plan, capsys):
    with Display(plan, 2) as display:
        display(plan)
        trains(plan[0], 10, 1.0)
        display.last = None
        display(plan)
        (plan[0].folder / "result.json").write_text("{}")
        plan[0].stage, display.last = "evaluating", None
        display(plan)
    said = capsys.readouterr()
    assert said.out.splitlines() == ["vae seed 0: training", "vae seed 0: evaluating, bound -45.12"] and said.err == ""


SCRIPT = """
import sys, time
from pathlib import Path
from bsvi.cli import main
import bsvi.commands.sweep as sweep
def run_jobs(plan, workers, show):
    for job in plan[1:]:
        job.stage = "waiting"
    show(plan)
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
sweep.run_jobs = run_jobs
sys.exit(main(["sweep", "digits", "--seeds", "0:4"]))
"""


def test_ctrl_c_leaves_the_cursor_and_the_last_lines(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where the tests themselves run in the background
        os.chdir(tmp_path)
        os.execve(sys.executable, [sys.executable, "-c", SCRIPT], {**os.environ, "TERM": "xterm", "NO_COLOR": "1"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    said, pressed, limit = b"", False, time.monotonic() + 100
    while time.monotonic() < limit:
        try:
            said += os.read(terminal, 65536)
        except OSError:  # it has ended
            break
        if b"ready" in said and not pressed:
            os.write(terminal, b"\x03")
            pressed = True
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert said.count(b"\x1b[?25l") <= said.count(b"\x1b[?25h")
    last = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", said).decode().splitlines()
    assert last[-1].startswith("interrupted; everything is saved") and last[-2].startswith("32 runs: 1 training")
    assert sum(line.startswith("vae seed 0") and "training" in line for line in last[-23:]) == 1


def test_no_display_ever_hides_the_cursor(monkeypatch):
    console = open_console()
    console.file, console._force_terminal = io.StringIO(), True
    monkeypatch.setattr("bsvi.commands.bar.open_console", lambda: console)
    with Bar("mine", 10, quiet=False) as bar:
        bar.update(5)
    assert "5/10" in console.file.getvalue() and "\x1b[?25l" not in console.file.getvalue()
