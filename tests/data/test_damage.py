"""Point by point: a flipped bit or a missing end is refused, or changes nothing, in every format."""

import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bsvi.data.integrity import BadFile, write_record
from bsvi.data.pictures import read_pictures
from tests.data.made_files import FORMATS, Format, smooth

CASES = [pytest.param(25, id="sample"), pytest.param(500, id="whole", marks=pytest.mark.slow)]


def damaged(whole: bytes, kind: str, count: int) -> list[bytes]:
    rng = np.random.default_rng(len(whole))
    if kind == "truncation":
        return [whole[:length] for length in rng.integers(0, len(whole), count)]
    copies = []
    for bit in rng.integers(0, 8 * len(whole), count):
        copy = bytearray(whole)
        copy[bit // 8] ^= 1 << (bit % 8)
        copies.append(bytes(copy))
    return copies


def outcome(kind: Format, path: Path, original: str, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    try:
        found = kind.load(path).sha256
    except BadFile as error:
        message = str(error)
        assert "\n" not in message and path.name in message and "expected" in message and "found" in message
        return "refused"
    if found == original:
        return "the same data"
    return "other data, with a warning" if "no checksum" in caplog.text else "other data, silently"


@pytest.mark.parametrize("count", CASES)
@pytest.mark.parametrize("damage", ["flip", "truncation"])
@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_refused_or_changes_nothing_once_the_hash_is_recorded(
    name: str, damage: str, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = FORMATS[name].make(tmp_path)
    write_record([path], path.parent)
    original, whole = FORMATS[name].load(path).sha256, path.read_bytes()
    for copy in damaged(whole, damage, count):
        path.write_bytes(copy)
        assert outcome(FORMATS[name], path, original, caplog) == "refused"


@pytest.mark.parametrize("count", CASES)
@pytest.mark.parametrize("damage", ["flip", "truncation"])
@pytest.mark.parametrize("name", FORMATS)
def test_damage_without_a_recorded_hash_is_never_accepted_silently(
    name: str, damage: str, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bsvi.data")
    path = FORMATS[name].make(tmp_path)
    original, whole = FORMATS[name].load(path).sha256, path.read_bytes()
    assert ("no checksum" in caplog.text) != FORMATS[name].own_checksum
    outcomes = []
    for copy in damaged(whole, damage, count):
        path.write_bytes(copy)
        outcomes.append(outcome(FORMATS[name], path, original, caplog))
    allowed = {"refused", "the same data"} | (set() if FORMATS[name].own_checksum else {"other data, with a warning"})
    assert set(outcomes) <= allowed
    assert "refused" in outcomes or damage == "flip"


def test_no_single_flip_of_a_png_gives_another_picture(tmp_path: Path) -> None:
    # all bits, because only a few flips near the end pass a decoder that does not compare the chunks' checksums
    path = tmp_path / "x.png"
    Image.fromarray(smooth(1, 16, 16)[0] > 99).save(path)
    original, whole = read_pictures(tmp_path), path.read_bytes()
    for bit in range(8 * len(whole)):
        copy = bytearray(whole)
        copy[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(copy)
        with suppress(BadFile):
            assert np.array_equal(read_pictures(tmp_path), original)
