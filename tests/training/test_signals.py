"""One wish to stop, however many signals bring it; a later one ends the process at once."""

import os
import signal
import subprocess
import sys
import time

import pytest

from bsvi.system import signals
from bsvi.system.signals import Signals
from tests.training.torchruns import linux

CHILD = """
import signal, sys, time
from pathlib import Path
from bsvi.system.signals import Signals
from bsvi.training.team import end_with_parent
here, seconds = Path(sys.argv[1]), float(sys.argv[2])
with Signals() as signals:
    end_with_parent(signal.SIGTERM)
    (here / "ready").touch()
    while not signals.received:
        time.sleep(0.01)
    (here / "asked").touch()
    time.sleep(seconds)  # the step in hand
    (here / "saved").write_text(signals.received)
"""
PARENT = """
import subprocess, sys, threading, time
for _ in range(200):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
time.sleep(100)
"""


def wait_for(file, process):
    limit = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < limit and process.poll() is None, file
        time.sleep(0.005)


def start(folder, seconds, *before):
    process = subprocess.Popen([sys.executable, *before, "-c", CHILD, str(folder), str(seconds)])
    wait_for(folder / "ready", process)
    return process


@linux
def test_a_killed_parent_of_many_threads_is_one_wish_to_stop(tmp_path):
    """Linux sends the signal once for each thread that the child is handed to: without ECHO the child dies unsaved."""
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        parent = start(folder, 0.3, "-c", PARENT)
        parent.kill()
        parent.wait()
        limit = time.monotonic() + 30
        while not (folder / "saved").exists():
            assert time.monotonic() < limit, f"the child has not saved ({sorted(folder.iterdir())})"
            time.sleep(0.01)
        assert (folder / "saved").read_text() == "SIGTERM"


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_an_echo_is_not_heard_and_a_later_signal_ends_at_once(tmp_path, second):
    process = start(tmp_path, 60)
    process.send_signal(signal.SIGINT)
    wait_for(tmp_path / "asked", process)
    begin = time.monotonic()
    while process.poll() is None and time.monotonic() < begin + 30:
        process.send_signal(second)
        time.sleep(0.02)
    assert process.wait(30) == -second
    assert time.monotonic() - begin > signals.ECHO / 2  # many before that were ignored
    assert not (tmp_path / "saved").exists()


def test_handlers_from_before_are_back_and_meet_no_echo(monkeypatch):
    monkeypatch.setattr(signals, "ECHO", 0.2)
    met = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: met.append(number))
    mine = signal.getsignal(signal.SIGUSR1)
    try:
        with Signals() as received:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert received.received == "SIGUSR1"
        time.sleep(0.3)  # the thread that listens again finds nothing to change
        assert signal.getsignal(signal.SIGUSR1) is mine and met == []
        os.kill(os.getpid(), signal.SIGUSR1)
        assert met == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


@linux
def test_a_closed_terminal_is_a_wish_to_stop(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started by nohup
    try:
        process = start(tmp_path, 0.1)
    finally:
        signal.signal(signal.SIGHUP, before)
    process.send_signal(signal.SIGHUP)
    assert process.wait() == 0
    assert (tmp_path / "saved").read_text() == "SIGHUP"


def test_a_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and asked.received == ""
    finally:
        signal.signal(signal.SIGHUP, before)
