"""``bsvi train PATH``: one's own images are trained on, with networks chosen by their size and kind and said in a line."""

import contextlib
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from bsvi.cli import main
from bsvi.commands.sweep_flags import parse as parse_sweep
from bsvi.commands.sweep_plan import make_plan
from bsvi.commands.train_flags import parse
from bsvi.data import BadFile, check, load
from bsvi.experiments.config import EXPERIMENTS, Data
from bsvi.experiments.own_images import choose
from tests.data.made_files import idx_bytes, smooth, write_pictures

TINY = ["--steps", "2", "--valid-every", "1", "--logger", "none", "--threads", "1"]


def drawings(n: int, height: int, width: int) -> np.ndarray:
    """Images that are black and white but for few pixels."""
    return np.where(smooth(n, height, width) > 128, 255, 0).astype(np.uint8)


def write_pair(folder: Path, train: np.ndarray, test: np.ndarray) -> Path:
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(train)))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(test)))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"labels are left alone")
    return folder


def test_a_path_is_trained_on_and_evaluated_like_an_experiment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path / "mine", smooth(40, 8, 8), smooth(9, 8, 8, 1))
    assert main(["train", "mine", *TINY, "--net.kind", "mlp"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mine: images of 8x8, grey values kept; ")
    about = json.loads((tmp_path / "runs/mine/bsvi-sir-seed0/config.json").read_text())
    assert about["data"]["test"] == 9 and about["config"]["data"]["binarise"] == "none"
    assert main(["train", "mine", *TINY, "--net.kind", "mlp", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("finished before")


@pytest.mark.parametrize(
    ("images", "binarise", "like", "net"),
    [
        (smooth(60, 28, 28), "none", "fashion-mnist-small", "fashion-mnist-small"),
        (drawings(60, 28, 20), "dynamic", "omniglot-small", "omniglot-small"),
        (drawings(60, 12, 12), "dynamic", "omniglot-small", "digits"),
        (smooth(60, 100, 20), "none", "fashion-mnist-mlp", "fashion-mnist-mlp"),
        (drawings(60, 5, 5), "dynamic", "omniglot-mlp", "omniglot-mlp"),
    ],
    ids=["grey", "drawings", "small", "large", "tiny"],
)
def test_networks_follow_the_size_and_kind_of_the_images(tmp_path, images, binarise, like, net):
    np.save(tmp_path / "x.npy", images)
    chosen, line = choose(tmp_path / "x.npy", Data())
    assert (chosen.data.binarise, chosen.net, chosen.optim) == (binarise, EXPERIMENTS[net].net, EXPERIMENTS[like].optim)
    assert like in line and f"{images.shape[1]}x{images.shape[2]}" in line
    asked, _ = choose(tmp_path / "x.npy", Data(binarise="threshold"))
    assert asked.data.binarise == "threshold"


def test_a_flag_and_a_file_of_settings_come_after_what_was_chosen(tmp_path, monkeypatch, capsys):
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures", ".png")
    (tmp_path / "mine.toml").write_text("[data]\nsize = [8, 10]\n[net]\nlatent = 3\n")
    words = [str(tmp_path / "pictures"), "--config", str(tmp_path / "mine.toml"), "--net.channels", "4"]
    command = parse(words)
    assert (command.data.size, command.net.latent, command.net.channels) == ((8, 10), 3, 4)
    assert "images of 8x10" in capsys.readouterr().out
    np.save(tmp_path / "digits.npy", smooth(20, 8, 8))
    assert parse([str(tmp_path / "digits.npy")]).experiment == "digits-images"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "unknown experiment 'nowhere'; there are"),
        (["./nowhere"], "./nowhere is no file or folder; name your own images, or one of digits, "),
        (["nowhere.npz"], "nowhere.npz is no file or folder"),
        ([""], "a word is empty; is a variable of the shell not set?"),
        (["text.txt"], "text.txt: expected an IDX file of images (first bytes 00 00 08 03), found 68 65 6c 6c"),
        (["large.npy"], "images of 130x130 are larger than networks are chosen for; resize them: --data.size 64 64"),
        (["large.npy", "--data.name", "digits"], "--data.name digits is another set of images than large.npy"),
    ],
)
def test_a_path_that_cannot_be_trained_on_is_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "large.npy", smooth(4, 130, 130))
    (tmp_path / "text.txt").write_text("hello")
    with contextlib.suppress(SystemExit):
        assert main(["train", *words]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("bsvi train: ") and said in line


def test_runs_of_a_sweep_over_a_path_are_filed_under_a_name_and_not_among_the_images(tmp_path):
    folder = write_pair(tmp_path / "mine", smooth(40, 8, 8), smooth(9, 8, 8, 1))
    arguments, rest = parse_sweep([str(folder), "--methods", "vae", "--runs", str(tmp_path / "runs")])
    (job,) = make_plan(arguments, rest)
    assert job.folder == tmp_path / "runs/mine/vae-seed0" and job.train[1] == str(folder)


def test_a_folder_with_an_idx_pair_gives_its_train_and_test_images(tmp_path):
    train, test = smooth(40, 6, 6), smooth(9, 6, 6, 1)
    folder = write_pair(tmp_path / "mine", train, test)
    dataset = load(str(folder))
    assert [len(split) for split in dataset.splits] == [36, 4, 9]
    assert np.array_equal(dataset.test.images[:, 0].numpy(), test)
    assert len(check(folder).files) == 2
    write_pictures(folder, ".png")
    with pytest.raises(BadFile, match=r"expected no pictures beside train-images-idx3-ubyte.gz, found 0.png"):
        load(str(folder))


def test_two_idx_files_of_one_split_are_refused(tmp_path):
    folder = write_pair(tmp_path / "mine", smooth(40, 6, 6), smooth(9, 6, 6, 1))
    (folder / "test-images.idx3-ubyte").write_bytes(idx_bytes(smooth(3, 6, 6)))
    with pytest.raises(BadFile, match="one IDX file of images for each"):
        load(str(folder))
