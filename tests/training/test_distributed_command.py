"""``torchrun -m bsvi train`` as a user runs it: one result for any number of processes; a killed rank costs a restart."""

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess

import pytest

from bsvi.commands import together
from bsvi.runs.folder import RunError
from bsvi.training.loop import NotFinite
from bsvi.training.team import Rank, Team
from tests.training.children import Child, ending, whole_checkpoints
from tests.training.torchruns import GONE, WORDS, Torchrun, linux, steps_saved


def train(folder, *more):
    return ["train", *WORDS, "--out", str(folder), *more]


def alone(folder, *more):
    child = Child(train(folder, *more), folder)
    assert child.wait(240) == 0, child.said()
    return json.loads((folder / "result.json").read_text())


def check_gone(folder, torchrun):
    """All processes end soon, with an error, and leave whole checkpoints."""
    assert torchrun.seconds_until_gone() < GONE, torchrun.said()
    assert torchrun.process.returncode != 0
    assert whole_checkpoints(folder)[1] == []


@linux
def test_a_killed_rank_ends_the_run_and_one_process_goes_on_with_it(place):
    expected = alone(place / "one", "--steps", "100")
    torchrun = Torchrun(train(place / "run", "--steps", "100", "--save-every", "0.01"), place / "run")
    assert torchrun.wait_until(lambda: steps_saved(place / "run") > 3), torchrun.said()
    assert torchrun.kill(random.Random().randrange(2))
    check_gone(place / "run", torchrun)
    assert "another process of this run has ended" in torchrun.said()
    result = alone(place / "run", "--steps", "100")  # at another number of processes, to the end
    assert result["best_valid_bound"] == pytest.approx(expected["best_valid_bound"], rel=1e-4)
    log = (place / "run" / "log.txt").read_text()
    assert log.count("processes: 2 -> 1") == 1 and "not be bitwise" in log


@linux
@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_and_the_result_is_that_of_one_process(place):
    expected = alone(place / "one", "--steps", "100")
    torchrun = Torchrun(train(place / "run", "--steps", "100", "--save-every", "0.01"), place / "run", restarts=1)
    assert torchrun.wait_until(lambda: steps_saved(place / "run") > 3), torchrun.said()
    assert torchrun.kill(1)
    assert torchrun.wait() == 0, torchrun.said()
    result = json.loads((place / "run" / "result.json").read_text())
    assert result["steps"] == 100 and result["best_step"] == expected["best_step"]
    assert result["best_valid_bound"] == pytest.approx(expected["best_valid_bound"], rel=1e-4)
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(10, 101, 10))  # each once
    child = Child(train(place / "run", "--steps", "100"), place / "again")
    assert child.wait() == 0 and "finished before" in child.said()


@linux
def test_ranks_do_not_outlive_a_killed_torchrun(place):
    torchrun = Torchrun(train(place / "run", "--steps", "100000"), place / "run")
    assert torchrun.wait_until(lambda: steps_saved(place / "run") > 0), torchrun.said()
    assert len(torchrun.ranks()) == 2 and torchrun.kill(None)
    check_gone(place / "run", torchrun)
    assert "(SIGTERM); run the same command again" in torchrun.said()  # they have saved before


@linux
def test_a_batch_that_does_not_divide_is_refused_in_one_line(place):
    torchrun = Torchrun(train(place / "run"), place / "run", size=3)
    assert torchrun.wait() != 0
    said = [line for line in torchrun.said().splitlines() if line.startswith("bsvi train:")]
    assert len(said) == 1 and "batch_size 20 does not divide among 3 processes" in said[0]


def test_only_a_silent_rank_with_an_error_waits_for_the_first_one_to_tell_it(monkeypatch):
    waited = []
    monkeypatch.setattr(together.time, "sleep", waited.append)
    cases = [(RunError("no"), 1), (NotFinite("nan"), 3), (SystemExit(2), 2), (SystemExit(0), 0)]
    for error, code in cases:
        with pytest.raises(SystemExit) as silent, together.speak_once(Rank(1, 2, 1)):
            raise error
        assert silent.value.code == code
    assert waited == [together.GRACE] * 3  # not for --help
    for place in (None, Rank(0, 2, 0)):
        for error, _ in cases:
            with pytest.raises(type(error)) as told, together.speak_once(place):
                raise error
            assert told.value is error
    with pytest.raises(ValueError, match="mine"), together.speak_once(Rank(1, 2, 1)):  # what this one alone has met
        raise ValueError("mine")
    assert len(waited) == 3


def test_sigterm_cannot_silence_the_outcome_of_one_of_several():
    team, before = Team(), signal.getsignal(signal.SIGTERM)
    try:
        for error in (RuntimeError("lost"), None):
            for team.size in (1, 2):
                signal.signal(signal.SIGTERM, before)
                with contextlib.suppress(RuntimeError), together.shield_message(team):
                    if error is not None:
                        raise error
                assert (signal.getsignal(signal.SIGTERM) == signal.SIG_IGN) == (team.size == 2)
    finally:
        signal.signal(signal.SIGTERM, before)


@linux
@pytest.mark.slow
def test_sigterm_to_torchrun_or_a_rank_saves_and_resuming_is_bitwise(place):
    whole = Torchrun(train(place / "whole", "--steps", "150"), place / "whole")
    assert whole.wait() == 0, whole.said()
    for target in ("torchrun", "rank"):
        torchrun = Torchrun(train(place / target, "--steps", "150"), place / target)
        assert torchrun.wait_until(lambda folder=place / target: steps_saved(folder) > 3)

        os.kill(torchrun.process.pid if target == "torchrun" else torchrun.ranks()[1], signal.SIGTERM)
        check_gone(place / target, torchrun)
        assert "saved at step" in torchrun.said()
        again = Torchrun(train(place / target, "--steps", "150"), place / target)
        assert again.wait() == 0, again.said()
        assert ending(place / target) == ending(place / "whole")


def when_to_kill(torchrun, folder, draw):
    """Wait until the ranks start, or have saved; returns the seconds from then on."""
    before = steps_saved(folder)
    if draw.random() < 0.3:
        torchrun.wait_until(torchrun.ranks)
        return draw.uniform(0.0, 6.0)
    torchrun.wait_until(lambda: steps_saved(folder) > before)
    return draw.uniform(0.0, 1.5)


@linux
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_random_kills_of_a_random_rank(place, tally):
    whole = Torchrun(train(place / "whole", "--steps", "400"), place / "whole")
    assert whole.wait(600) == 0, whole.said()
    expected, draw = ending(place / "whole"), random.Random(6)
    gone, finished, folder = [], 0, place / "run 0"
    while len(gone) < 20:
        torchrun = Torchrun(train(folder, "--steps", "400"), folder)
        limit = when_to_kill(torchrun, folder, draw)
        with_ranks = torchrun.ranks()
        try:
            torchrun.process.wait(limit)
        except subprocess.TimeoutExpired:
            rank = draw.randrange(2)
            if len(with_ranks) == 2 and torchrun.kill(rank):
                gone.append(torchrun.seconds_until_gone())
                assert gone[-1] < GONE, torchrun.said()
        code = torchrun.wait()
        assert whole_checkpoints(folder)[1] == []
        if (folder / "result.json").exists():
            assert ending(folder) == expected
            finished, folder = finished + 1, place / f"run {finished + 1}"
        else:
            assert code != 0
    last = Torchrun(train(folder, "--steps", "400"), folder)
    assert last.wait(600) == 0 and ending(folder) == expected, last.said()
    seconds = {"median": round(statistics.median(gone), 1), "slowest": round(max(gone), 1)}
    tally(
        "SIGKILL of a random rank: all gone within 10 s, resumed bitwise",
        len(gone),
        20,
        seconds=seconds,
        runs=finished + 1,
    )


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_torchrun_recovers_from_several_kills_by_itself(place):
    whole = Torchrun(train(place / "whole", "--steps", "300"), place / "whole")
    assert whole.wait(600) == 0, whole.said()
    torchrun = Torchrun(train(place / "run", "--steps", "300"), place / "run", restarts=10)
    draw = random.Random(3)
    for _ in range(5):
        before = steps_saved(place / "run")
        if not torchrun.wait_until(lambda before=before: steps_saved(place / "run") > before):
            break
        torchrun.kill(draw.randrange(2))
    assert torchrun.wait(900) == 0, torchrun.said()
    assert ending(place / "run") == ending(place / "whole")


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_machines_restart_together_whichever_loses_a_rank(place):
    """Two torchruns as on two machines: each counts the restarts that it has caused itself."""
    expected = alone(place / "one", "--steps", "300")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=test", f"--rdzv-endpoint=127.0.0.1:{port}")
    words, folder = train(place / "run", "--steps", "300"), place / "run"
    machines = [Torchrun(words, place / f"machine{i}", 1, restarts=3, machines=where) for i in range(2)]
    for killed in machines:
        before = steps_saved(folder)
        assert killed.wait_until(lambda before=before: steps_saved(folder) > before), killed.said()
        os.kill(*killed.ranks().values(), signal.SIGKILL)
    for machine in machines:
        assert machine.wait(600) == 0, machine.said()
    result = json.loads((folder / "result.json").read_text())
    assert result["best_valid_bound"] == pytest.approx(expected["best_valid_bound"], rel=1e-4)


@linux
def test_phases_under_torchrun_give_the_result_of_one_process(place):
    phases = ["--phases", "vae:20,bsvi-e2e:20", "--valid-every", "10"]
    expected = alone(place / "one", *phases)
    torchrun = Torchrun(train(place / "two", *phases), place / "two")
    assert torchrun.wait() == 0, torchrun.said()
    result = json.loads((place / "two" / "result.json").read_text())
    assert result["steps"] == expected["steps"] == 40
    assert result["best_valid_bound"] == pytest.approx(expected["best_valid_bound"], rel=1e-4)
    lines = [json.loads(line) for line in (place / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines if line.get("split") == "valid"] == ["vae"] * 2 + ["bsvi-e2e"] * 2
