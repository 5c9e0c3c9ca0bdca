import gzip
import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bsvi.data import BadFile, Unavailable, check, fetch, list_datasets, load
from bsvi.data.fashion_mnist import load_fashion_mnist
from bsvi.tables.data_sets import DATA_SETS, Source
from tests.data.made_files import idx_bytes, smooth, write_cropped, write_pictures


def test_list_says_what_is_here(tmp_path: Path) -> None:
    assert {row.name: row.here for row in list_datasets(tmp_path)} == {
        "digits": "yes",
        "omniglot": "no",
        "svhn": "no",
        "fashion-mnist": "no",
        "mnist": "no",
    }
    (tmp_path / "svhn").mkdir()
    write_cropped(tmp_path / "svhn" / "train_32x32.mat")
    write_cropped(tmp_path / "test_32x32.mat")
    assert {row.name: row.here for row in list_datasets(tmp_path)}["svhn"] == "without extra_32x32.mat"


def test_svhn_takes_the_extra_images_unless_told_not_to(tmp_path: Path) -> None:
    for part in ("train", "test", "extra"):
        write_cropped(tmp_path / f"{part}_32x32.mat")
    assert len(load("svhn", tmp_path, validation=2, download=False).train) == 22
    without = load("svhn", tmp_path, validation=2, extra=False, download=False)
    assert [len(split) for split in without.splits] == [10, 2, 12]


def test_missing_files_are_named_with_address_and_folder(tmp_path: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"chardata\.mat is not there; get it from https://.*chardata\.mat and put it"
    ):
        load("omniglot", tmp_path, download=False)


def test_fetch_brings_what_is_missing_and_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    sources = (
        Source("a.mat", ("http://127.0.0.1:9/",), "md5", ""),
        Source("b.mat", ("http://127.0.0.1:9/",), "md5", ""),
    )
    monkeypatch.setitem(DATA_SETS, "omniglot", replace(DATA_SETS["omniglot"], sources=sources))
    (tmp_path / "a.mat").write_bytes(b"here")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(Unavailable, match=r"b\.mat could not be downloaded"):
        fetch("omniglot", tmp_path)
    (tmp_path / "b.mat").write_bytes(b"here")
    assert fetch("omniglot", tmp_path) == [tmp_path / "a.mat", tmp_path / "b.mat"]
    assert fetch("digits", tmp_path) == []


def test_unknown_names_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data set 'omniglott'; it must be one of digits, omniglot, svhn"):
        load("omniglott", tmp_path)
    with pytest.raises(ValueError, match="no data set 'kmnist' to fetch"):
        fetch("kmnist", tmp_path)
    with pytest.raises(ValueError, match="digits: unknown option size; it can have: none"):
        load("digits", size=9)


def test_another_data_hash_than_the_expected_one_is_refused() -> None:
    found = load("digits").sha256
    assert load("digits", sha256=found).sha256 == found
    with pytest.raises(ValueError, match=f"expected data with the hash 00, found {found}; these are other images"):
        load("digits", sha256="00")


def test_data_hash_changes_with_a_pixel_with_the_split_and_with_the_binarisation(tmp_path: Path) -> None:
    images = smooth(40, 5, 5)
    hashes = set()
    for change in range(2):
        images[7, 2, 2] = 100 + change
        np.savez(tmp_path / "x.npz", images=images)
        for options in ({}, {"validation": 5}, {"binarise": "none"}):
            hashes |= {load(tmp_path / "x.npz", **options).sha256}
    assert len(hashes) == 6


def test_check_reports_counts_ranges_hashes_and_a_contact_sheet(tmp_path: Path) -> None:
    images = smooth(50, 12, 10)
    np.savez(tmp_path / "x.npz", images=images)
    report = check(tmp_path / "x.npz", contact_sheet=tmp_path / "sheets" / "x.png")
    assert [(split.name, split.count) for split in report.splits] == [("train", 40), ("valid", 5), ("test", 5)]
    assert min(split.low for split in report.splits) == images.min() / 255
    assert max(split.high for split in report.splits) == images.max() / 255
    assert sum(split.mean * split.count for split in report.splits) == pytest.approx(images.mean() / 255 * 50)
    assert report.sha256 in str(report) and "hash not recorded" in str(report) and "train" in str(report)
    with Image.open(tmp_path / "sheets" / "x.png") as sheet:
        pixels = np.asarray(sheet)
    first = images[load(tmp_path / "x.npz").train.ids[0]].repeat(4, 0).repeat(4, 1)
    assert np.array_equal(pixels[24 : 24 + 48, 8 : 8 + 40], first)  # upright, first of the first split


def test_check_tells_the_public_files_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = idx_bytes(smooth(9, 28, 28))
    row = replace(DATA_SETS["fashion-mnist"], load=partial(load_fashion_mnist, validation=2, counts=(9, 9)))
    monkeypatch.setitem(DATA_SETS, "fashion-mnist", row)
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content, mtime=0))
    assert str(check("fashion-mnist", tmp_path)).count("not the public file") == 2
    inside = hashlib.md5(content).hexdigest()
    row = replace(row, sources=tuple(replace(source, content_md5=inside) for source in row.sources))
    monkeypatch.setitem(DATA_SETS, "fashion-mnist", row)
    assert str(check("fashion-mnist", tmp_path)).count("the public file's images") == 2
    zipped = hashlib.md5(gzip.compress(content, mtime=0)).hexdigest()
    sources = tuple(replace(source, digest=zipped) for source in row.sources)
    monkeypatch.setitem(DATA_SETS, "fashion-mnist", replace(row, sources=sources))
    assert "the public file," in str(check("fashion-mnist", tmp_path))


def test_check_records_hashes_when_asked_and_later_damage_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", smooth(20, 5, 5))
    assert "hash recorded" in str(check(tmp_path / "x.npy", record_hashes=True))
    content = bytearray((tmp_path / "x.npy").read_bytes())
    content[-1] ^= 1
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(BadFile, match="as recorded in"):
        load(tmp_path / "x.npy")


def test_check_records_all_pictures_of_a_folder_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    write_pictures(tmp_path / "train", ".jpg")
    check(tmp_path, record_hashes=True)
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 6
    content = bytearray((tmp_path / "train" / "2.jpg").read_bytes())
    content[-20] ^= 1
    (tmp_path / "train" / "2.jpg").write_bytes(content)
    with pytest.raises(BadFile, match=r"2\.jpg: expected sha256"):
        load(tmp_path)


def test_loading_never_writes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", smooth(20, 5, 5))
    load(tmp_path / "x.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
