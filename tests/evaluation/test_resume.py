"""Killed after hours? Run it again: the table is the same, no example is lost or counted twice."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

from bsvi import VAE
from bsvi.evaluation.evaluate import evaluate
from tests.evaluation.oracle import batches
from tests.oracles import BernoulliDecoder, Counted

OPTIONS = {"k": 12, "iwae": (5, 20)}


def network(seed=0):
    torch.manual_seed(seed)
    return VAE(nn.Linear(20, 8), Counted(BernoulliDecoder())), torch.rand(60, 20).round()


def table(scores):
    return np.stack([scores.columns[name] for name in sorted(scores.columns)])


def killed_after(seconds, path, note):
    """Evaluate in a process of its own and kill it; True if it was done before. ``note`` gets a byte per finished batch."""
    child = os.fork()
    if child == 0:
        try:
            model, x = network()
            with open(note, "ab", buffering=0) as file:
                evaluate(model, batches(x, 5), store=path, progress=lambda done: file.write(b"."), **OPTIONS)
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(seconds)
    done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False
    assert status == 0
    return True


def survive(kills, folder):
    """Tables that were finished under ``kills`` SIGKILLs at random moments."""
    rng, done, tables = random.Random(1), 0, []
    model, x = network()
    while done < kills or not tables:
        path, note = folder / f"{len(tables)}.part", folder / "note"
        while not killed_after(rng.uniform(0.01, 0.15), path, note):
            done += 1
            if path.exists() and note.exists():
                finished = max(0, path.read_bytes().count(b"\n") - 1)  # a kill may come before the header too
                assert finished >= len(note.read_bytes())  # what was reported as done is on the disk
            note.unlink(missing_ok=True)
            if path.exists() and done >= kills:
                break
        tables.append(table(evaluate(model, batches(x, 5), store=path, **OPTIONS)))
        note.unlink(missing_ok=True)
    return done, tables


def check_kills(kills, folder):
    model, x = network()
    expected = table(evaluate(model, batches(x, 5), **OPTIONS))
    done, tables = survive(kills, folder)
    assert done >= kills
    assert sum(path.read_bytes().count(b"\n") for path in folder.glob("*.part")) == 13 * len(tables)  # no batch twice
    for got in tables:
        np.testing.assert_array_equal(got, expected)


def test_random_kills_give_the_identical_table(tmp_path):
    check_kills(4, tmp_path)


@pytest.mark.slow
def test_fifty_random_kills_give_the_identical_table(tmp_path):
    check_kills(50, tmp_path)


def test_finished_examples_are_not_computed_again(tmp_path):
    model, x = network()
    path = tmp_path / "some" / "store"
    first = evaluate(model, batches(x, 10)[:4], store=path, **OPTIONS)
    rows = model.decoder.rows
    again = evaluate(model, batches(x, 10)[:4], store=path, **OPTIONS)
    assert model.decoder.rows == rows
    np.testing.assert_array_equal(table(again), table(first))
    assert again.seconds == first.seconds > 0
    whole = evaluate(model, batches(x, 7, backwards=True), store=path, **OPTIONS)  # batches that are done in part
    assert model.decoder.rows == 1.5 * rows
    np.testing.assert_allclose(table(whole), table(evaluate(model, batches(x, 60), **OPTIONS)), rtol=1e-4, atol=1e-4)
    fewer = evaluate(model, batches(x, 10)[:2], store=path, **OPTIONS)
    assert fewer.ids.tolist() == list(range(20))


def test_a_file_cut_anywhere_goes_on(tmp_path):
    model, x = network()
    path = tmp_path / "store"
    options = {"k": 1, "iwae": (), "elbo_draws": 1}
    expected = table(evaluate(model, batches(x[:6], 2), store=path, **options))
    content = path.read_bytes()
    header = content.index(b"\n") + 1
    for cut in [0, 1, header - 1, header, header + 1, *range(header + 5, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:cut])
        np.testing.assert_array_equal(table(evaluate(model, batches(x[:6], 2), store=path, **options)), expected)
        assert path.read_bytes().count(b"\n") == 4  # the header and three batches


def test_damage_before_the_last_line_is_refused(tmp_path):
    model, x = network()
    path = tmp_path / "store"
    evaluate(model, batches(x, 20), store=path, **OPTIONS)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged at byte"):
        evaluate(model, batches(x, 20), store=path, **OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 13}, "k was 12, now 13"),
        ({"seed": 1}, "seed was 0, now 1"),
        ({"iwae": (5, 21)}, "iwae was"),
        ({"elbo_draws": 3}, "elbo_draws was 32, now 3"),
    ],
)
def test_a_store_of_another_question_is_refused(tmp_path, change, message):
    model, x = network()
    evaluate(model, batches(x, 20)[:1], store=tmp_path / "store", **OPTIONS)
    with pytest.raises(ValueError, match=message) as error:
        evaluate(model, batches(x, 20), store=tmp_path / "store", **OPTIONS | change)
    assert "\n" not in str(error.value)


def test_another_model_or_other_data_is_refused(tmp_path):
    model, x = network()
    path = tmp_path / "store"
    evaluate(model, batches(x, 20), store=path, **OPTIONS)
    with pytest.raises(ValueError, match="model was"):
        evaluate(network(1)[0], batches(x, 20), store=path, **OPTIONS)
    other = x.clone()
    other[33] = 1 - other[33]
    with pytest.raises(ValueError, match="example 33 with other data"):
        evaluate(model, batches(other, 20), store=path, **OPTIONS)


def test_two_processes_on_one_store_are_noticed(tmp_path):
    model, x = network()
    path = tmp_path / "store"

    def second(done):
        with pytest.raises(OSError, match="another process"):
            evaluate(model, batches(x, 20), store=path, **OPTIONS)

    evaluate(model, batches(x, 20)[:1], store=path, progress=second, **OPTIONS)
    evaluate(model, batches(x, 20), store=path, **OPTIONS)  # and the lock is gone with its owner


def test_a_store_that_cannot_be_written_is_one_clear_line(tmp_path):
    model, x = network()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot write the store"):
        evaluate(model, batches(x, 20), store=tmp_path / "file" / "store", **OPTIONS)
