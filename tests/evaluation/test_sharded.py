"""Evaluation by several processes: the numbers of one, each image once, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from bsvi import cli
from bsvi.commands.evaluate_shares import find_share, share_batches
from bsvi.data import load_digits
from bsvi.evaluation import ais as annealing
from bsvi.evaluation.evaluate import evaluate
from bsvi.runs.store import share_path
from tests.evaluation.oracle import batches
from tests.evaluation.test_resume import OPTIONS, network, table
from tests.training.torchruns import Torchrun, alive, linux

BATCH = 5


def do(path, number, count):
    """Share ``number`` of ``count``, as the command does it."""
    model, x = network()
    mine = islice(batches(x, BATCH), number - 1, None, count)
    evaluate(model, mine, store=share_path(path, number, count), **OPTIONS)


def killed_after(seconds, path, number, count):
    """A share in a process of its own, killed if it takes longer."""
    child = os.fork()
    if child == 0:
        try:
            do(path, number, count)
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(seconds)
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        assert status == 0
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def whole(path, **more):
    model, x = network()
    scores = evaluate(model, batches(x, BATCH), store=path, **OPTIONS, **more)
    assert scores.ids.tolist() == list(range(60))  # each once
    return table(scores), model.decoder.rows


def expected():
    model, x = network()
    return table(evaluate(model, batches(x, BATCH), **OPTIONS))


def in_file(path):
    """How often each example is in the file."""
    lines = [json.loads(line[9:]) for line in path.read_text().splitlines()[1:]]
    return sorted(name for line in lines for name in line["ids"])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_give_the_table_of_one_process_and_nothing_is_computed_twice(tmp_path, count):
    path = tmp_path / "store.jsonl"
    for number in range(count, 0, -1):
        do(path, number, count)
    got, rows = whole(path)
    assert rows == 0  # all of it was in the files
    np.testing.assert_array_equal(got, expected())
    assert [each.name for each in tmp_path.iterdir()] == ["store.jsonl"]  # which holds them now
    assert in_file(path) == list(range(60))
    np.testing.assert_array_equal(whole(path)[0], got)


def test_what_is_missing_is_done_by_whoever_makes_the_table(tmp_path):
    path = tmp_path / "store"
    do(path, 2, 3)
    got, rows = whole(path)
    assert rows > 0 and in_file(path) == list(range(60))
    np.testing.assert_array_equal(got, expected())


def check_kills(folder, kills, seed):
    """Shares of changing numbers are killed at random moments; the table stays the same."""
    draw, done, tables, right = random.Random(seed), 0, 0, expected()
    while done < kills:
        path, tables = folder / f"{tables}.jsonl", tables + 1
        assert tables < 20 * kills
        for _ in range(3):
            count = draw.choice([2, 3, 4])
            done += killed_after(draw.uniform(0.01, 0.1), path, draw.randrange(count) + 1, count)
        got, _ = whole(path)
        np.testing.assert_array_equal(got, right)
        assert in_file(path) == list(range(60))  # no image lost or doubled on the disk either


def test_killed_shares_lose_and_double_nothing(tmp_path):
    check_kills(tmp_path, 4, seed=1)


@pytest.mark.slow
def test_fifty_killed_shares_lose_and_double_nothing(tmp_path):
    check_kills(tmp_path, 50, seed=2)


def test_a_kill_while_shares_are_taken_over_doubles_nothing(tmp_path):
    path = tmp_path / "store.jsonl"
    for number in (1, 2):
        do(path, number, 2)
    kept = {each: each.read_bytes() for each in tmp_path.iterdir()}
    whole(path)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for cut in (ends[0], ends[3], ends[3] + 40, ends[8] - 1, len(content)):
        path.write_bytes(content[:cut])
        for each, data in kept.items():  # the files of the shares were not removed yet
            each.write_bytes(data)
        got, rows = whole(path)
        np.testing.assert_array_equal(got, expected())
        assert rows == 0 and in_file(path) == list(range(60)) and len([*tmp_path.iterdir()]) == 1


def test_a_living_share_is_not_taken_over(tmp_path):
    path = tmp_path / "store.jsonl"
    model, x = network()

    def meanwhile(done):
        with pytest.raises(OSError, match="another process is writing"):
            whole(path)
        do(path, 1, 2)  # while another share may go on beside it

    evaluate(model, batches(x, 20)[:1], store=share_path(path, 2, 2), progress=meanwhile, **OPTIONS)
    assert len([*tmp_path.glob("*.share-*")]) == 2
    np.testing.assert_allclose(whole(path)[0], expected(), rtol=1e-4, atol=1e-4)  # a batch of 20 among those of 5


def test_a_damaged_share_is_refused(tmp_path):
    path = tmp_path / "store.jsonl"
    do(path, 1, 2)
    content = bytearray(share_path(path, 1, 2).read_bytes())
    content[len(content) // 2] ^= 1
    share_path(path, 1, 2).write_bytes(content)
    with pytest.raises(ValueError, match=r"share-1-of-2.jsonl is damaged at byte"):
        whole(path)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12, 15])
def test_the_batches_of_all_shares_are_the_images_once_each(count):
    test = load_digits().test.take(12)
    found = [share_batches(test, 5, (number + 1, count), None) for number in range(count)]
    ids = [batch.ids.tolist() for share in found for batch in share]
    assert sorted(chain.from_iterable(ids)) == sorted(test.ids.tolist())
    assert max(map(len, ids)) <= 5 and (
        count > 12 or all(len([*share_batches(test, 5, (n + 1, count), None)]) for n in range(count))
    )


def test_wrong_shares_are_one_clear_line():
    assert find_share("2/3", 1, None) == (2, 3) and find_share(None, 4, None) is None
    for text, processes in (("0/3", 1), ("4/3", 1), ("half", 1), ("1/2", 2), (None, 0)):
        with pytest.raises(ValueError) as error:
            find_share(text, processes, None)
        assert "\n" not in str(error.value)


# --- the command ------------------------------------------------------------------------------------------------------

WORDS = [
    "--k",
    "8",
    "--iwae",
    "8",
    "--batch-size",
    "20",
    "--device",
    "cpu",
    "--threads",
    "1",
    "--compile",
    "off",
    "--quiet",
]


def command(run, *more):
    return [sys.executable, "-m", "bsvi", "evaluate", str(run), *WORDS, *more]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, its scores by one process, and a function that gives a copy without them."""
    from shutil import copytree

    folder = tmp_path_factory.mktemp("runs") / "run"
    words = (
        "digits --net.kind mlp --net.hidden 8 --net.latent 2 --svi.steps 2 --steps 5 --logger none --quiet --device cpu"
    )
    subprocess.run([sys.executable, "-m", "bsvi", "train", *words.split(" "), "--out", folder], check=True, timeout=200)
    fresh = Path(f"{folder}-fresh")
    copytree(folder, fresh)
    subprocess.run(command(folder), check=True, timeout=200, capture_output=True)
    return folder, lambda name: copytree(fresh, folder.parent / name)


def same_scores(one, other):
    with np.load(one / "scores-test.npz") as a, np.load(other / "scores-test.npz") as b:
        assert a.files == b.files and a["ids"].tolist() == b["ids"].tolist() and len(set(a["ids"].tolist())) == 400
        for name in a.files:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-4)
    means = [json.loads((run / "scores.json").read_text())["test"]["log_likelihood"] for run in (one, other)]
    assert means[0] == pytest.approx(means[1], rel=1e-4)


def test_evaluate_with_processes_and_after_a_kill_is_evaluate(trained):
    run, copy = trained
    folder = copy("processes")
    process = subprocess.Popen(command(folder, "--processes", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shares = wait_for_shares(process, folder)
    os.kill(random.choice(shares), signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and b"killed by SIGKILL" in said and said.count(b"\n") == 1, said.decode()
    assert not any(alive(share) for share in shares)
    assert not (folder / "scores.json").exists()
    again = subprocess.run(command(folder, "--processes", "3"), capture_output=True, timeout=200)
    assert again.returncode == 0, again.stderr.decode()
    same_scores(run, folder)
    assert not [*folder.glob("*.share-*")]


def wait_for_shares(process, folder):
    """The processes of the shares, once one of them has finished a batch."""
    limit = time.monotonic() + 120
    while not any(path.read_bytes().count(b"\n") > 1 for path in folder.glob("*.share-*")):
        assert process.poll() is None and time.monotonic() < limit
        time.sleep(0.01)
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int((place / "stat").read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                found.append(int(place.name))
        except (OSError, ValueError):
            continue
    return found


def check_judged(folder, said):
    """scores.json has what was said of AIS on two images, and what the estimate of the log-likelihood differs from it there."""
    judged = json.loads((folder / "scores.json").read_text())["test"]["ais"]
    assert judged["images"] == 2 and f"{judged['log_likelihood']['mean']:.2f}" == said
    with np.load(folder / "scores-test.npz") as scores:
        own = scores["log_likelihood"][np.argsort(scores["ids"])[:2]].mean()
    (difference,) = (value["mean"] for name, value in judged["minus_ais"].items() if name.startswith("BSVI"))
    assert difference == pytest.approx(own - judged["log_likelihood"]["mean"], abs=1e-6)


def test_ais_is_kept_beside_the_scores(trained, monkeypatch, capsys):
    monkeypatch.setattr(annealing, "ais", partial(annealing.ais, chains=2, temperatures=5, leapfrog=2))
    folder = trained[1]("ais-quick")
    assert cli.main(["evaluate", str(folder), *WORDS, "--ais", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    check_judged(folder, next(line.split()[1] for line in lines if line.strip().startswith("AIS")))
    assert sum("minus AIS" in line for line in lines) == 2  # BSVI and IWAE


@pytest.mark.slow
def test_evaluate_with_processes_shares_ais_too(trained):
    """The judge's numbers are those of one process, and the images were done by the shares, one each."""
    said, one, two = [], *map(trained[1], ("ais-one", "ais-two"))
    for folder, processes in ((one, "1"), (two, "2")):
        words = command(folder, "--processes", processes, "--ais", "2")
        done = subprocess.run(words, capture_output=True, timeout=200, text=True)
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith("AIS"))
        said.append(float(line.split()[1].replace("−", "-")))
        (store,) = folder.glob("ais-*.jsonl")
        assert len(store.read_text().splitlines()) == 1 + int(processes)  # the question, then a batch of each share
        assert len(in_file(store)) == 2
        check_judged(folder, line.split()[1])
    assert said[0] == pytest.approx(said[1], abs=0.02)  # printed to 0.01


@linux
def test_evaluate_under_torchrun_is_evaluate(trained):
    run, copy = trained
    folder = copy("torchrun")
    torchrun = Torchrun(["evaluate", folder, *WORDS], folder, size=3)
    assert torchrun.wait() == 0, torchrun.said()
    same_scores(run, folder)
    assert torchrun.said().count("log_likelihood") == 1  # the first process alone prints
    assert not [*folder.glob("*.share-*")]
