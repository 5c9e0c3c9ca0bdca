"""MNIST: read from its IDX files, binarised at each visit or once, and never taken for another set of the same names."""

import gzip
import hashlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from bsvi.data import BadFile, evaluation_batches, load, training_batches
from bsvi.data.mnist import load_mnist
from bsvi.experiments.config import EXPERIMENTS
from bsvi.tables.data_sets import DATA_SETS
from tests.data.made_files import idx_bytes, smooth

FILES = ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with small files of MNIST's names, and the catalogue told of their sizes."""
    for seed, name in enumerate(FILES):
        (tmp_path / name).write_bytes(gzip.compress(idx_bytes(smooth(9, 28, 28, seed))))
    row = replace(DATA_SETS["mnist"], load=partial(load_mnist, validation=2, counts=(9, 9)))
    monkeypatch.setitem(DATA_SETS, "mnist", row)
    return tmp_path


def visits(dataset):
    return [next(iter(training_batches(dataset.train, seed=s, batch_size=7, steps=1))) for s in (0, 1)]


def test_training_pixels_are_drawn_at_each_visit_or_once(folder):
    dynamic, static = load("mnist", folder), load("mnist", folder, binarise="static")
    assert (dynamic.likelihood, dynamic.shape) == (DATA_SETS["mnist"].likelihood, DATA_SETS["mnist"].shape)
    for dataset, same in ((dynamic, False), (static, True)):
        first, second = visits(dataset)
        a, b = first.x[first.ids.argsort()], second.x[second.ids.argsort()]
        assert set(a.unique().tolist()) == {0.0, 1.0} and torch.equal(a, b) is same
    (seen,), (kept,) = (list(evaluation_batches(data.test, batch_size=9)) for data in (dynamic, static))
    assert torch.equal(seen.x, kept.x)  # evaluation images are the same either way
    assert dynamic.sha256 != static.sha256


def test_your_own_images_can_be_binarised_once_too(tmp_path):
    np.save(tmp_path / "x.npy", smooth(30, 6, 6))
    first, second = visits(load(tmp_path / "x.npy", binarise="static"))
    shared = sorted(set(first.ids.tolist()) & set(second.ids.tolist()))
    rows = [torch.stack([batch.x[batch.ids.tolist().index(i)] for i in shared]) for batch in (first, second)]
    assert torch.equal(*rows) and len(shared) > 0


def test_files_of_the_same_name_with_another_sets_images_are_refused(folder, monkeypatch):
    row = DATA_SETS["fashion-mnist"]
    digest = hashlib.md5(idx_bytes(smooth(9, 28, 28, 0))).hexdigest()
    monkeypatch.setitem(
        DATA_SETS, "fashion-mnist", replace(row, sources=(replace(row.sources[0], content_md5=digest),))
    )
    with pytest.raises(
        BadFile, match="expected images of mnist, found those of fashion-mnist; put each set into a folder"
    ):
        load("mnist", folder)


def test_other_binarisations_of_mnist_are_refused(folder):
    with pytest.raises(ValueError, match="mnist: binarise must be dynamic or static, got 'none'"):
        load("mnist", folder, binarise="none")


def test_mnist_has_the_experiments_that_fashion_mnist_has():
    for name in ("mnist", "mnist-mlp", "mnist-small"):
        theirs = EXPERIMENTS[f"fashion-{name}"]
        assert EXPERIMENTS[name].net == theirs.net and EXPERIMENTS[name].data.name == "mnist"
