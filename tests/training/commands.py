"""``bsvi train`` in commands that must fail with one line."""

import subprocess
import sys

from bsvi.cli import main
from tests.training import faults


def failing(words, code=1):
    """Run a command that must fail with one line on standard error; returns the line."""
    done = subprocess.run([sys.executable, "-m", "bsvi", *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert done.stdout == "" and line.startswith("bsvi train: "), line
    return line


def in_process(capsys, words, code=1):
    """As failing, in this process."""
    try:
        got = main(words)
    except SystemExit as left:
        got = left.code
    said = capsys.readouterr()
    assert got == code, said.err
    (line,) = said.err.strip().splitlines()
    assert said.out == "" and "Traceback" not in line
    return line


def slow_after_meeting(at):
    faults.slow_steps(0.2)
    faults.start_together(at)
