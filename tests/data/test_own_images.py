from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bsvi.data import evaluation_batches, load, training_batches
from bsvi.data.integrity import BadFile
from bsvi.data.pictures import read_pictures
from bsvi.data.svhn import to_grey
from tests.data.made_files import idx_bytes, smooth


def all_images(path: Path, **options: object) -> np.ndarray:
    """Return the images of all splits in the order of their source."""
    dataset = load(str(path), **options)
    images, ids = (torch.cat([getattr(split, part) for split in dataset.splits]) for part in ("images", "ids"))
    return images[ids.argsort()][:, 0].numpy()


def test_folder_npy_npz_and_idx_give_the_same_images_and_the_same_splits(tmp_path: Path) -> None:
    images = smooth(30, 6, 7)
    (tmp_path / "folder").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "folder" / f"{i:03}.png")
    np.save(tmp_path / "a.npy", images)
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=np.zeros(30))
    (tmp_path / "a-idx3-ubyte").write_bytes(idx_bytes(images))
    paths = [tmp_path / name for name in ("folder", "a.npy", "a.npz", "a-idx3-ubyte")]
    assert all(np.array_equal(all_images(path), images) for path in paths)
    assert len({load(str(path)).sha256 for path in paths}) == 1


def test_parts_that_are_given_are_kept_and_missing_ones_drawn(tmp_path: Path) -> None:
    train, test = smooth(40, 5, 5, 1), smooth(9, 5, 5, 2)
    np.savez(tmp_path / "x.npz", train=train, test=test)
    dataset = load(str(tmp_path / "x.npz"), validation=7)
    assert [len(split) for split in dataset.splits] == [33, 7, 9]
    assert np.array_equal(dataset.test.images[:, 0].numpy(), test)
    assert sorted([*dataset.train.ids.tolist(), *dataset.valid.ids.tolist()]) == list(range(40))
    with pytest.raises(ValueError, match="it has a test part of its own, so 3 images for it cannot be drawn"):
        load(str(tmp_path / "x.npz"), test=3)


def test_folder_with_parts_as_subfolders(tmp_path: Path) -> None:
    for part, n in (("train", 10), ("valid", 3), ("test", 4)):
        (tmp_path / part).mkdir()
        for i, image in enumerate(smooth(n, 5, 5)):
            Image.fromarray(image).save(tmp_path / part / f"{i}.bmp")
    assert [len(split) for split in load(str(tmp_path)).splits] == [10, 3, 4]


def test_binarisation_options(tmp_path: Path) -> None:
    grey = np.linspace(0, 1, 30 * 16).reshape(30, 4, 4)
    np.save(tmp_path / "x.npy", grey)
    dynamic = load(str(tmp_path / "x.npy"))
    assert dynamic.likelihood == "bernoulli" and dynamic.train.images.dtype == torch.float32
    first, second = (b.x for b in training_batches(dynamic.train, seed=0, batch_size=24, steps=2))
    assert set(first.unique().tolist()) == {0.0, 1.0} and not torch.equal(first, second)
    threshold = load(str(tmp_path / "x.npy"), binarise="threshold")
    x, ids = next(evaluation_batches(threshold.test, batch_size=50))
    assert threshold.likelihood == "bernoulli"
    assert np.array_equal(x[:, 0].numpy(), grey[ids.numpy()] >= 0.5)
    none = load(str(tmp_path / "x.npy"), binarise="none")
    x, ids = next(evaluation_batches(none.test, batch_size=50))
    assert none.likelihood == "logistic"
    assert (
        torch.equal(x, (x * 255).round() / 255)
        and np.abs(x[:, 0].numpy() - grey[ids.numpy()]).max() <= 0.5 / 255 + 1e-6
    )
    with pytest.raises(ValueError, match="binarise must be dynamic, static, threshold or none, got 'maybe'"):
        load(str(tmp_path / "x.npy"), binarise="maybe")


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "f8", "?"])
def test_number_types_mean_what_they_usually_mean(tmp_path: Path, dtype: str) -> None:
    black_and_white = np.indices((30, 4, 4)).sum(0) % 2
    scale = 255 if dtype in ("u1", "i8") else 1
    np.save(tmp_path / "x.npy", (black_and_white * scale).astype(dtype))
    dataset = load(str(tmp_path / "x.npy"), binarise="none")
    x, ids = next(evaluation_batches(dataset.valid, batch_size=9))
    assert np.array_equal(x[:, 0].numpy(), black_and_white[ids.numpy()])


@pytest.mark.parametrize("size", [8, (6, 10)])
def test_pictures_of_all_sizes_become_one_size(tmp_path: Path, size: int | tuple[int, int]) -> None:
    for i in range(5):
        Image.fromarray(np.full((20 + i, 30 - i), 50 * i, np.uint8)).save(tmp_path / f"{i}.png")
    with pytest.raises(BadFile, match=r"expected 20x30 pixels as in 0.png, found 21x29; give a size to resize to"):
        load(str(tmp_path))
    dataset = load(str(tmp_path), size=size)
    assert dataset.shape[1:] == ((size, size) if isinstance(size, int) else size)
    assert [image.mean() for image in all_images(tmp_path, size=size)] == [0, 50, 100, 150, 200]
    np.save(tmp_path / "x.npy", np.full((5, 20, 30), 0.25))
    assert np.allclose(all_images(tmp_path / "x.npy", size=size), 0.25)


def test_colour_becomes_grey_as_in_svhn_and_transparency_lies_on_white(tmp_path: Path) -> None:
    colours = np.stack([smooth(1, 9, 9, seed)[0] for seed in range(3)])
    Image.fromarray(colours.transpose(1, 2, 0)).save(tmp_path / "a.png")
    Image.fromarray(np.zeros((9, 9, 4), np.uint8)).save(tmp_path / "b.png")
    first, second = read_pictures(tmp_path)
    assert np.array_equal(first, to_grey(colours[None])[0])
    assert (second == 255).all()


@pytest.mark.parametrize("shape", [(30, 4, 5), (30, 1, 4, 5), (30, 4, 5, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_axes_of_one_colour_may_be_written_out_or_not(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    images = smooth(30, 4, 5)
    np.savez(tmp_path / "x.npz", np.asarray(images.reshape(shape), order=order))
    assert np.array_equal(all_images(tmp_path / "x.npz"), images)


def test_camera_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    Image.fromarray(smooth(1, 8, 12)[0]).save(tmp_path / "a.jpg", exif=exif)
    assert read_pictures(tmp_path).shape == (1, 12, 8)


def test_pictures_that_lose_depth_or_frames_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(BadFile, match="expected 8-bit grey or colour, found mode I;16"):
        read_pictures(tmp_path)
    (tmp_path / "a.png").unlink()
    frames = [Image.fromarray(image) for image in smooth(2, 8, 8)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(BadFile, match="expected one picture, found several frames"):
        read_pictures(tmp_path)


def test_empty_folder_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"expected pictures \(.png.*found none"):
        load(str(tmp_path))
    np.save(tmp_path / "x.npy", smooth(9, 4, 4))
    with pytest.raises(ValueError, match="holding out 9 of 9 images leaves an empty split"):
        load(str(tmp_path / "x.npy"), test=9)
    with pytest.raises(ValueError, match="size must be between 1 and 4096 pixels, got 0"):
        load(str(tmp_path / "x.npy"), size=0)
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.uint8)[None].repeat(9, 0))
    with pytest.raises(BadFile, match="found only 0 and 1, which would be nearly black; save them as bool"):
        load(tmp_path / "x.npy")
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    with pytest.raises(BadFile, match=r"expected a folder of pictures, .* found one picture"):
        load(tmp_path / "x.png")
    np.savez(tmp_path / "x.npz", a=np.zeros((3, 4, 4)), b=np.zeros((3, 4, 4)))
    with pytest.raises(BadFile, match="expected an array named train or images, found only a, b"):
        load(str(tmp_path / "x.npz"))
    np.savez(tmp_path / "x.npz", train=np.zeros((9, 4, 4)), test=np.zeros((3, 5, 4)))
    with pytest.raises(BadFile, match="expected images of one size and type in all splits"):
        load(str(tmp_path / "x.npz"))
