"""Files that are sound as files but not what they should be: each is refused in one line with expected and found."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from bsvi.data.fashion_mnist import load_fashion_mnist
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile, write_record
from bsvi.data.mat import read_mat
from bsvi.data.npy import read_npy
from bsvi.data.omniglot import load_omniglot
from bsvi.data.own_images import load_own_images
from bsvi.data.svhn import read_cropped
from tests.data.made_files import idx_bytes, smooth, write_chardata, write_cropped


def columns(n: int = 20) -> np.ndarray:
    return smooth(n, 28, 28).reshape(n, 784).T / 255


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "i2", "u4", "i8"])
def test_mat_reader_agrees_with_scipy(tmp_path: Path, compressed: bool, dtype: str) -> None:
    arrays = {
        "a": np.arange(24).reshape(2, 3, 4).astype(dtype),
        "long_name_of_b": np.ones((1, 5), dtype),
        "c": np.eye(2),
    }
    scipy.io.savemat(tmp_path / "x.mat", {**arrays, "text": "ignored", "cells": {"also": 1}}, do_compression=compressed)
    theirs = scipy.io.loadmat(tmp_path / "x.mat")
    ours = read_mat(tmp_path / "x.mat", tuple(arrays))
    for name in arrays:
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"data": columns(19)}, r"expected data of shape \(784, 20\), found \(784, 19\)"),
        ({"data": columns().T}, r"expected data of shape \(784, 20\), found \(20, 784\)"),
        ({"data": columns() * 255}, r"expected grey values in \[0, 1\] in data, found values from"),
        ({"data": columns() - 0.5}, r"expected grey values in \[0, 1\] in data, found values from"),
        ({"testdata": np.where(np.eye(784, 8), np.nan, 0.5)}, r"in testdata, found values from nan to nan"),
        ({"data": {"a": 1}}, "expected real numbers in data, found struct"),
        ({"data": np.array([{}, 2], object)}, "expected real numbers in data, found cell"),
        ({"data": columns() * 1j}, "expected real numbers in data, found complex numbers"),
        ({"data": "abc"}, "expected real numbers in data, found char"),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_omniglot_of_other_content_is_refused(tmp_path: Path, other: dict, message: str, compressed: bool) -> None:
    write_chardata(tmp_path / "chardata.mat", compressed, **other)
    with pytest.raises(BadFile, match=message):
        load_omniglot(tmp_path / "chardata.mat", validation=3, counts=(20, 8))


def test_mat_without_the_wanted_arrays_is_refused(tmp_path: Path) -> None:
    write_cropped(tmp_path / "x.mat")
    with pytest.raises(BadFile, match="expected the arrays data, testdata, found no data and no testdata"):
        load_omniglot(tmp_path / "x.mat")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"X": np.zeros((32, 32, 12), np.uint8)}, r"expected X of shape \(32, 32, 3, n\).*found \(32, 32, 12\)"),
        ({"X": np.zeros((28, 32, 3, 12), np.uint8)}, r"found \(28, 32, 3, 12\) uint8"),
        ({"X": np.zeros((32, 32, 3, 12))}, r"found \(32, 32, 3, 12\) float64"),
        ({"y": np.ones((11, 1))}, r"expected y of shape \(12, 1\)"),
        ({"y": np.zeros((12, 1))}, "with labels 1..10"),
    ],
)
def test_svhn_of_other_content_is_refused(tmp_path: Path, other: dict, message: str) -> None:
    write_cropped(tmp_path / "train.mat", **other)
    with pytest.raises(BadFile, match=message):
        read_cropped(tmp_path / "train.mat")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected an IDX file of images .* found nothing"),
        (b"\0\0\x08\x01\0\0\0\x04abcd12345678", "found 00 00 08 01"),
        (b"<!DOCTYPE html><html>not data</html>", "found 3c 21 44 4f"),
        (idx_bytes(smooth(3, 8, 8)) + b"\0", "expected 192 bytes for 3 images of 8x8, found more"),
        (idx_bytes(smooth(3, 8, 8))[:-1], "expected 192 bytes for 3 images of 8x8, found 191"),
        (idx_bytes(np.zeros((0, 8, 8), np.uint8)), "expected images, found the empty shape 0 x 8 x 8"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_of_other_content_is_refused(tmp_path: Path, content: bytes, message: str, zipped: bool) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(BadFile, match=message):
        read_idx_images(tmp_path / "x")


def test_fashion_mnist_of_other_counts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(idx_bytes(smooth(3, 28, 28)))
    with pytest.raises(BadFile, match="expected 60,000 images of 28x28, found 3 of 28x28"):
        load_fashion_mnist(tmp_path / "x", tmp_path / "x")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((5, 4, 4), np.nan), r"expected grey values in \[0, 1\] in train, found values from nan"),
        (np.full((5, 4, 4), 1.5), "found values from 1.5 to 1.5"),
        (np.full((5, 4, 4), -1, np.int16), "expected whole numbers in 0..255 in train, found values from -1"),
        (np.full((5, 4, 4), 256), "found values from 256 to 256"),
        (np.zeros((5, 4)), r"expected train of shape \(n, height, width\), one colour, found \(5, 4\)"),
        (np.zeros((5, 4, 4, 3)), r"found \(5, 4, 4, 3\)"),
        (np.zeros((5, 4, 4), complex), "expected numbers in x.npy, found complex128"),
        (np.zeros((5, 4, 4), "S3"), r"expected numbers in x.npy, found \|S3"),
        (np.zeros((0, 4, 4)), r"expected images in x.npy, found the shape \(0, 4, 4\)"),
        (np.zeros((1, 4, 4)), "expected at least 3 images"),
    ],
)
def test_own_arrays_of_other_content_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(BadFile, match=message):
        load_own_images(tmp_path / "x.npy")


def test_npy_with_bytes_after_its_end_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with (tmp_path / "x.npy").open("ab") as file:
        file.write(b"more")
    with pytest.raises(BadFile, match=r"expected 24 bytes in x.npy .* found more"):
        read_npy(tmp_path / "x.npy")


def test_recorded_hash_is_written_and_read_as_sha256sum_does(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    write_record([tmp_path / "x.npy"], tmp_path)
    digest, name = (tmp_path / "SHA256SUMS").read_text().rstrip("\n").split("  ")
    assert name == "x.npy" and len(digest) == 64
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  x.npy\n")
    with pytest.raises(BadFile, match=r"expected sha256 0{64} as recorded in .*SHA256SUMS, found .*restore the file"):
        read_npy(tmp_path / "x.npy")
    (tmp_path / "SHA256SUMS").write_text("gibberish\n")
    with pytest.raises(BadFile, match="expected lines of 'sha256  file name', found 'gibberish'"):
        read_npy(tmp_path / "x.npy")
