"""Your own images: a folder of pictures or of IDX files, an .npy or .npz file, or an IDX file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from PIL import Image

from bsvi.data.batches import binarise_once
from bsvi.data.dataset import Dataset, Split, SplitName, hold_out
from bsvi.data.idx import read_idx_images
from bsvi.data.integrity import BadFile
from bsvi.data.npy import read_npy, read_npz
from bsvi.data.pictures import FORMATS, find_pictures, read_pictures, resize

BINARISE = ("dynamic", "static", "threshold", "none")
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")
SPLIT_WORDS = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test"}
LIKELY_SPLITS = {
    "training": "train",
    "dev": "valid",
    "development": "valid",
    "eval": "test",
    "testing": "test",
    "holdout": "test",
}


def load_own_images(
    path: Path,
    *,
    size: int | tuple[int, int] | None = None,
    binarise: str = "dynamic",
    validation: int | None = None,
    test: int | None = None,
) -> Dataset:
    """Return a data set made of the images at `path`.

    A folder with subfolders train, valid (or val, validation) and test, in any case, gives those splits, as does an .npz
    with arrays of these names, or a folder with an IDX pair (train-images-idx3-ubyte and t10k-images-idx3-ubyte, also
    as .gz); anything else beside them is refused. Parts that are missing are drawn from train with the
    published seed, `validation` and `test` images of it (a tenth, at most 2,000). `size` (one side, or height and width)
    crops and resizes. `binarise` is "dynamic" (0/1 pixels drawn at every visit, Bernoulli likelihood), "static" (drawn once,
    with the published seed), "threshold" (1 from
    a grey value of 0.5 on, Bernoulli likelihood) or "none" (grey values on the grid j/255, discretised logistic likelihood).

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "noise.npz"
    >>> np.savez(path, images=np.random.default_rng(0).integers(0, 256, (50, 6, 7), np.uint8))
    >>> dataset = load_own_images(path, binarise="none")
    >>> dataset.shape, dataset.likelihood, [len(split) for split in dataset.splits]
    ((1, 6, 7), 'logistic', [40, 5, 5])
    """
    if binarise not in BINARISE:
        raise ValueError(f"binarise must be dynamic, static, threshold or none, got {binarise!r}")
    sides = (size, size) if isinstance(size, int) else size
    if sides is not None and not all(1 <= side <= 4096 for side in sides):
        raise ValueError(f"size must be between 1 and 4096 pixels, got {size}")
    arrays = {name: _standardise(path, name, array, sides, binarise) for name, array in _read(path, sides).items()}
    if len({(array.shape[1:], array.dtype) for array in arrays.values()}) > 1:
        found = ", ".join(f"{name} {array.shape[1:]} {array.dtype}" for name, array in arrays.items())
        raise BadFile(path, "images of one size and type in all splits", found)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {n: (a, np.arange(len(a))) for n, a in arrays.items()}
    tenth = min(2000, max(1, len(arrays["train"]) // 10))
    for word, (name, count) in enumerate((("test", test), ("valid", validation))):
        if name not in parts:
            parts["train"], parts[name] = _draw(path, *parts["train"], tenth if count is None else count, word)
        elif count is not None:
            raise ValueError(f"{path}: it has a {name} part of its own, so {count} images for it cannot be drawn")
    levels = 1 if binarise == "threshold" or next(iter(arrays.values())).dtype != np.uint8 else 255
    train, valid, tested = (
        Split(
            name,
            torch.from_numpy(parts[name][0][:, None]),
            torch.from_numpy(parts[name][1]),
            levels,
            binarise in ("dynamic", "static"),
        )
        for name in SPLITS
    )
    if binarise == "static":
        train, valid, tested = map(binarise_once, (train, valid, tested))
    likelihood = "logistic" if binarise == "none" else "bernoulli"
    name = path.stem if path.stem.strip(".") else path.resolve().stem  # "." has no name of its own
    return Dataset(name, train, valid, tested, likelihood, str(path.resolve()))


def first_images(path: Path, size: tuple[int, int] | None = None, most: int = 50) -> np.ndarray:
    """Return the first images at `path`, shape (n, height, width), as grey values in [0, 1]: enough to know their kind.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "noise.npy"
    >>> np.save(path, np.random.default_rng(0).integers(0, 256, (90, 6, 7), np.uint8))
    >>> first_images(path).shape
    (50, 6, 7)
    """
    array = _standardise(path, "train", _read(path, size, most)["train"][:most], size, "dynamic")
    return array / 255.0 if array.dtype == np.uint8 else array


def list_own_files(path: Path) -> list[Path]:
    """Return the files that make up the images at `path`."""
    if path.is_dir():
        return [*idx_files(path).values()] or find_pictures(path)
    return [path]


def idx_files(folder: Path) -> dict[str, Path]:
    """Return the IDX files of images in a folder by their split, as MNIST names them; empty where there is none."""
    named: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        found = re.fullmatch(r"(\w+?)-images[-.]idx3-ubyte(\.gz)?", path.name)
        if found and path.is_file():
            word = "test" if found[1] == "t10k" else found[1]
            if word.lower() not in SPLIT_WORDS or word in named:
                raise BadFile(folder, "one IDX file of images for each of train, valid and t10k or test", path.name)
            named[word] = path
    return _sort_by_split(folder, named)


def find_split_folders(folder: Path) -> dict[str, Path]:
    """Return the subfolders by the split that their names mean, whatever their case; empty where none means one.

    Anything beside them that holds or could hold images is refused: it would be left out, or mixed with the rest.
    """
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in inside if path.is_dir()]
    for path in folders:
        if path.name.lower() in LIKELY_SPLITS:
            raise BadFile(
                folder, "train, valid and test", f"{path.name}; rename it to {LIKELY_SPLITS[path.name.lower()]}"
            )
    found = _sort_by_split(folder, {path.name: path for path in folders})
    pictures = [path for path in inside if path.suffix.lower() in FORMATS and path not in folders]
    others = [path for path in [*folders, *pictures] if path not in found.values()]
    if found and others:
        names = f"{others[0].name}{f' and {len(others) - 1} more' if len(others) > 1 else ''}"
        raise BadFile(folder, f"nothing beside {', '.join(path.name for path in found.values())}", names)
    return found


def _sort_by_split(path: Path, named: dict[str, Any]) -> dict[str, Any]:
    """What has the name of a split, by split; train must be there, and no split twice."""
    found: dict[str, Any] = {}
    for name, part in named.items():
        split = SPLIT_WORDS.get(name.lower())
        if split in found:
            raise BadFile(path, f"one {split} part", f"several, {name} among them")
        if split is not None:
            found[split] = part
    if found and "train" not in found:
        raise BadFile(path, "a part named train", f"only {', '.join(found)}")
    return found


def _read(path: Path, size: tuple[int, int] | None, most: int | None = None) -> dict[str, np.ndarray]:
    """The images by split; of a folder of pictures only the first `most` of each, where that is given."""
    if path.is_dir():
        if files := idx_files(path):
            if pictures := find_pictures(path):
                raise BadFile(path, f"no pictures beside {files['train'].name}", pictures[0].name)
            return {name: read_idx_images(file) for name, file in files.items()}
        folders = find_split_folders(path) or {"train": path}
        return {name: read_pictures(folder, size, path, most) for name, folder in folders.items()}
    if path.suffix == ".npy":
        return {"train": read_npy(path)}
    if path.suffix == ".npz":
        arrays = read_npz(path)
        if named := _sort_by_split(path, arrays):
            others = [
                name for name in arrays if name.lower() not in SPLIT_WORDS and arrays[name].ndim > 2
            ]  # labels have less
            if others:
                raise BadFile(path, f"no images beside {', '.join(named)}", others[0][:80])
            return named
        if "images" not in arrays and len(arrays) > 1:
            raise BadFile(path, "an array named train or images", f"only {', '.join(sorted(arrays))[:80]}")
        return {"train": arrays["images"] if "images" in arrays else next(iter(arrays.values()))}
    if path.suffix.lower() in FORMATS:
        raise BadFile(path, "a folder of pictures, an .npy or .npz file, or an IDX file", "one picture")
    return {"train": read_idx_images(path)}


def _standardise(
    path: Path, name: str, array: np.ndarray, size: tuple[int, int] | None, binarise: str
) -> UInt8[np.ndarray, "n height width"] | Float32[np.ndarray, "n height width"]:
    """Return images as 8-bit grey values, or as float32 where finer grey values are to be drawn from."""
    if array.ndim == 4 and 1 in (array.shape[1], array.shape[3]):
        array = array[:, 0] if array.shape[1] == 1 else array[..., 0]
    if array.ndim != 3:
        raise BadFile(path, f"{name} of shape (n, height, width), one colour", f"{array.shape}")
    low, high = array.min(), array.max()
    most = 255 if array.dtype.kind in "ui" else 1
    if not (low >= 0 and high <= most):  # also true of NaN
        what = "whole numbers in 0..255" if most == 255 else "grey values in [0, 1]"
        raise BadFile(path, f"{what} in {name}", f"values from {low} to {high}")
    if most == 255 and high == 1:
        advice = "only 0 and 1, which would be nearly black; save them as bool if they mean black and white"
        raise BadFile(path, f"whole numbers in 0..255 in {name}", advice)
    if array.dtype.kind == "f" and binarise == "none":
        array = np.rint(array * 255.0)
    if array.dtype.kind == "b":
        array = array * np.uint8(255)
    array = array.astype(np.uint8 if most == 255 or binarise == "none" or array.dtype == np.uint8 else np.float32)
    if size is not None and array.shape[1:] != size:
        array = np.stack([np.asarray(resize(Image.fromarray(image), size)) for image in array])
        array = array if array.dtype == np.uint8 else array.clip(0, 1)
    if binarise == "threshold":
        return (array >= (128 if array.dtype == np.uint8 else 0.5)).astype(np.uint8)
    return np.ascontiguousarray(array)


def _draw(
    path: Path, images: np.ndarray, ids: Int64[np.ndarray, " n"], count: int, word: int
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    if len(images) < 2:
        raise BadFile(path, "at least 3 images, to split into train, valid and test", "too few")
    kept, out = hold_out(len(images), count, word)
    return (images[kept], ids[kept]), (images[out], ids[out])
