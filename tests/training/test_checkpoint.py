"""A checkpoint is read whole or not at all: every flipped bit, every cut and every made-up file is refused."""

import errno
import os
import random
from pathlib import Path

import pytest
import torch

from bsvi.runs.checkpoint import MAGIC, BadCheckpoint, digest, pack, replace_nonfinite, unpack
from bsvi.runs.folder import Run
from bsvi.system.files import UnsafeFile, read_bytes, write_atomically
from tests.training.small import make


def good(seed=0):
    """A checkpoint with a bit of everything, some 2 kB."""
    model, objective = make(seed=seed)
    tensors = {**model.state_dict(), **objective.state_dict(), "random": torch.get_rng_state()[:64]}
    return pack(tensors, {"step": 3, "metrics_end": 0, "looks": {"best": "-inf"}})


def flips(data, count, seed=0):
    """``count`` copies with one bit flipped each: every bit of the head first, then any."""
    chance = random.Random(seed)
    head = len(MAGIC) + 65 + 16
    places = [*range(8 * head), *chance.sample(range(8 * head, 8 * len(data)), max(0, count - 8 * head))][:count]
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)


def cuts(data, count, seed=0):
    chance = random.Random(seed)
    yield from (data[:size] for size in [0, 1, len(MAGIC), len(MAGIC) + 65, len(data) - 1])
    yield from (data[: chance.randrange(len(data))] for _ in range(count - 5))


def refused(data):
    try:
        unpack(data)
    except BadCheckpoint:
        return True
    return False


def test_what_is_packed_is_unpacked_bit_by_bit():
    tensors = {
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2, dtype=torch.int64),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "turned": torch.arange(6.0).view(2, 3).T,
        "bytes": torch.arange(256, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    back, scalars = unpack(pack(tensors, {"a": [1, {"b": None}], "é": "ü"}))
    assert scalars == {"a": [1, {"b": None}], "é": "ü"}
    assert digest(back) == digest(tensors) and back["turned"].shape == (3, 2)


def test_tensors_that_share_memory_are_saved_each_on_its_own():
    weight = torch.randn(3)
    back, _ = unpack(pack({"a": weight, "b": weight, "c": weight[1:]}, {}))
    assert torch.equal(back["a"], weight) and torch.equal(back["c"], weight[1:])


def test_one_flipped_bit_is_always_found():
    data = good()
    assert not refused(data)
    assert all(refused(flipped) for flipped in flips(data, 1000))  # each bit of the head among them


def test_every_cut_is_found():
    data = good()
    assert all(refused(data[:size]) for size in range(len(data)))


def test_bytes_after_the_end_are_found():
    assert refused(good() + b"\0")


def test_the_reason_is_said():
    data = good()
    for made, reason in {
        b"": "empty",
        data[:10]: "cut off",
        data[:-1]: "SHA-256 does not match",
        b"PK\x03\x04" + bytes(200): "not a bsvi checkpoint",
        data.replace(b"checkpoint 1", b"checkpoint 27"): "format of version 27, this program reads version 1",
    }.items():
        with pytest.raises(BadCheckpoint, match=reason):
            unpack(made)


def test_the_hash_is_compared_before_anything_is_parsed(monkeypatch):
    import safetensors.torch

    monkeypatch.setattr(safetensors.torch, "load", lambda data: pytest.fail("parsed"))
    assert refused(good()[:-1] + b"?")


def test_random_bytes_with_a_correct_hash_never_do_more_than_be_refused():
    from tests.training.hostile import signed

    chance = random.Random(1)
    payload = good()[len(MAGIC) + 65 :]
    for _ in range(300):
        made = bytearray(payload)
        for _ in range(chance.randrange(1, 6)):
            made[chance.randrange(min(len(made), 700))] = chance.randrange(256)  # most of them hit the header
        try:
            tensors, scalars = unpack(signed(bytes(made)))
        except BadCheckpoint:
            continue
        assert isinstance(scalars, dict) and all(isinstance(value, torch.Tensor) for value in tensors.values())


def test_a_file_that_is_none_or_too_large_is_refused_without_reading_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafeFile, match="not a regular file"):
        read_bytes(tmp_path / "pipe", 100)  # would wait for ever
    with pytest.raises(UnsafeFile, match="not a regular file"):
        read_bytes(Path("/dev/zero"), 100)
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room
    with pytest.raises(UnsafeFile, match=r"1,099,511,627,776 bytes, where no more than 100 are read"):
        read_bytes(tmp_path / "huge", 100)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    for name in ("write", "fsync", "replace"):
        with monkeypatch.context() as patched:

            def fail(*words, **options):
                raise OSError(errno.ENOSPC, "No space left on device")

            patched.setattr(f"bsvi.system.files.os.{name}", fail)
            with pytest.raises(OSError, match="No space"):
                write_atomically(path, b"new")
        assert [each.name for each in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_disk_that_takes_a_part_at_a_time_gets_the_whole(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr("bsvi.system.files.os.write", lambda descriptor, data: real(descriptor, data[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_link_laid_in_the_way_of_the_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(victim)
    write_atomically(tmp_path / "file", b"new")
    assert victim.read_text() == "precious" and (tmp_path / "file").read_bytes() == b"new"


def test_numbers_that_json_lacks_become_null():
    assert replace_nonfinite({"a": (1, float("inf")), "b": {"c": float("nan")}}) == {"a": [1, None], "b": {"c": None}}


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_run_falls_back_to_the_checkpoint_before(tmp_path, damage):
    with Run(tmp_path) as run:
        for step in (1, 2):
            run.log({"step": step})
            assert run.save(step, {"a": torch.full((40,), float(step))}, {})
    newest = tmp_path / "state-00000002.ckpt"
    whole = newest.read_bytes()
    for data in flips(whole, 40) if damage == "flip" else cuts(whole, 40):
        newest.write_bytes(data)
        with Run(tmp_path) as run:
            tensors, scalars = run.find()
            assert scalars["step"] == 1 and tensors["a"][0] == 1
            (warning,) = run.warnings
            assert warning.startswith("state-00000002.ckpt is not used: ")
