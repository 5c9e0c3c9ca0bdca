import numpy as np
import pytest

from bsvi.data import digits, load_digits


def test_digits_are_the_1797_images_of_the_source() -> None:
    images, labels = digits.read_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8
    assert (images.min(), images.max()) == (0, 16)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and labels[0] == 0  # the well-known first row


def test_digits_split_into_disjoint_parts_that_cover_everything() -> None:
    dataset = load_digits()
    ids = [split.ids.tolist() for split in dataset.splits]
    assert [len(part) for part in ids] == [1197, 200, 400]
    assert sorted(i for part in ids for i in part) == list(range(1797))
    images, _ = digits.read_digits()
    for split in dataset.splits:
        assert np.array_equal(split.images[:, 0].numpy(), images[split.ids.numpy()])


def test_data_hash_of_digits_is_the_published_one() -> None:
    assert load_digits().sha256 == "9d0d7e31f3fe5954a426fdce1f8021123a1d453629b3582f7b9ecb23e15f84cf"


def test_altered_digits_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="install bsvi again"):
        digits.read_digits()
