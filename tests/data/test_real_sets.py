"""The real sets, where they are: ../shared/data beside the repository, or $BSVI_DATA_DIR."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bsvi.data import check, evaluation_batches, load, training_batches
from bsvi.data.dataset import Dataset
from bsvi.data.download import find
from bsvi.data.integrity import file_hash
from bsvi.data.omniglot import read_chardata
from bsvi.data.svhn import COUNTS, read_cropped
from bsvi.tables.data_sets import DATA_SETS

FOLDER = Path(os.environ.get("BSVI_DATA_DIR") or Path(__file__).parents[3] / "shared" / "data")
# SHA-256 of the variants that these tests know in full; other files are checked for counts and ranges only
KNOWN = {
    "chardata.mat": "aff7fd2f34a292d096dc84c7697f623bd93b6d3351ac72eb19e4af3b4d3b009c",
    "train_32x32.mat": "544d317cde1ad687847730f2a816d789fc480fe4ab8c29bd7931c6fc0925e67e",
    "test_32x32.mat": "8260a47d4bef79a65d16352623ad5f404189de3f739b2294e079467c8ad4713b",
}


def real(name: str, file: str) -> Path:
    path = find(name, file, FOLDER)
    if path is None:
        pytest.skip(f"{file} is not in {FOLDER}; set BSVI_DATA_DIR to a folder that has it")
    return path


def known(path: Path) -> bool:
    return file_hash(path) == KNOWN[path.name]


def counts(dataset: Dataset) -> list[int]:
    return [len(split) for split in dataset.splits]


def digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()[:16]


def steepness(images: np.ndarray) -> float:
    """Return the mean change from a pixel to the one below over the mean change to the one beside it."""
    images = images.astype(np.float32)
    return float(np.abs(np.diff(images, axis=1)).mean() / np.abs(np.diff(images, axis=2)).mean())


def test_omniglot_has_its_counts_range_and_a_known_image() -> None:
    path = real("omniglot", "chardata.mat")
    dataset = load("omniglot", FOLDER, download=False)
    assert counts(dataset) == [22_345, 2_000, 8_070] and dataset.shape == (1, 28, 28)
    assert dataset.likelihood == "bernoulli"
    for split in dataset.splits:
        assert split.images.min() == 0 and split.images.max() == 1
        assert 0.05 < split.images.mean() < 0.2  # light strokes on a dark ground
    x, _ = next(training_batches(dataset.train, seed=0, batch_size=50))
    assert set(x.unique().tolist()) == {0.0, 1.0}
    assert sorted([*dataset.train.ids.tolist(), *dataset.valid.ids.tolist()]) == list(range(24_345))
    if known(path):
        train, test = read_chardata(path)
        assert (digest(train[0]), digest(test[0])) == ("172efb08a8d7cf06", "c49bf9e908b1ec44")
        assert dataset.sha256 == "c90c37ed7d469d25b000d3d01d808aa2878c2550c8e4ac556adf1f4f3d4f3171"


def test_svhn_has_its_counts_range_and_a_known_image() -> None:
    paths = [real("svhn", file) for file in ("train_32x32.mat", "test_32x32.mat")]
    dataset = load("svhn", FOLDER, extra=False, download=False)
    assert dataset.shape == (1, 32, 32) and dataset.likelihood == "logistic" and len(dataset.valid) == 2_000
    if all(known(path) for path in paths):
        assert counts(dataset) == [6_001, 2_000, 1_999]  # 8,001 and 1,999 images
        first = read_cropped(paths[0])[0]
        assert digest(first) == "24d9eac2b6e7c057"
        assert dataset.sha256 == "bd93c66b946f804c44b2132f61b7c7192ec76dc4105cf1a565d7e68ffb833ef5"
    else:
        assert len(dataset.train) + 2_000 == COUNTS["train_32x32.mat"] and len(dataset.test) == COUNTS["test_32x32.mat"]
    assert dataset.train.images.dtype == torch.uint8
    assert (int(dataset.train.images.min()), int(dataset.train.images.max())) == (0, 255)
    x, _ = next(evaluation_batches(dataset.test, batch_size=50))
    assert torch.equal(x, (x * 255).round() / 255)


def test_fashion_mnist_is_the_official_one() -> None:
    paths = [real("fashion-mnist", f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k")]
    dataset = load("fashion-mnist", FOLDER, download=False)
    assert counts(dataset) == [58_000, 2_000, 10_000] and dataset.shape == (1, 28, 28)
    assert dataset.likelihood == "logistic"
    contents = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    known = tuple(source.content_md5 for source in DATA_SETS["fashion-mnist"].sources)
    assert tuple(hashlib.md5(content).hexdigest() for content in contents) == known
    whole = np.frombuffer(contents[0], np.uint8, offset=16).reshape(-1, 28, 28)
    for split in (dataset.train, dataset.valid):
        assert np.array_equal(split.images[:, 0].numpy(), whole[split.ids.numpy()])
    assert (int(dataset.train.images.min()), int(dataset.train.images.max())) == (0, 255)
    boot = whole[0]  # the well-known first image, an ankle boot: its toe is left, its sole below
    assert boot[24, 2:26].mean() > 100 and boot[2].sum() == 0 and boot[12, :8].sum() < boot[12, 16:24].sum()
    assert dataset.sha256 == "18927952de806cbeb7ef8d9fc84041850e1baedc94321f6f4b4129e88c42dad2"


def test_letters_and_digits_stand_upright() -> None:
    # writing has more vertical strokes than horizontal ones: a transposed reading turns these ratios over
    letters, _ = read_chardata(real("omniglot", "chardata.mat"))
    digits = read_cropped(real("svhn", "train_32x32.mat"))
    assert steepness(letters) < 0.96  # 0.933 in the variant known here, 1.072 transposed
    assert steepness(digits) < 0.9  # 0.724, and 1.382 transposed


@pytest.mark.parametrize("name", ["omniglot", "svhn", "fashion-mnist"])
def test_check_runs_on_the_real_files(name: str, tmp_path: Path) -> None:
    files = {"omniglot": "chardata.mat", "svhn": "test_32x32.mat", "fashion-mnist": "t10k-images-idx3-ubyte.gz"}
    real(name, files[name])
    report = check(name, FOLDER, contact_sheet=tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    assert all(split.low == 0 and split.high == 1 for split in report.splits)
