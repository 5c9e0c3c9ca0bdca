"""Small files of every format that the loaders read, made for the tests, each with the function that loads it."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
from PIL import Image

from bsvi.data.dataset import Dataset
from bsvi.data.fashion_mnist import load_fashion_mnist
from bsvi.data.omniglot import load_omniglot
from bsvi.data.own_images import load_own_images
from bsvi.data.svhn import load_svhn


def smooth(n: int, height: int, width: int, seed: int = 7) -> np.ndarray:
    """Return n 8-bit images with some structure, so that compressors have something to do."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    phase = rng.uniform(0, 6, (n, 1, 1))
    waves = 127 * (1 + np.sin(phase + rows * 0.4 + columns * 0.7))
    return np.clip(waves + rng.integers(-9, 9, (n, height, width)), 0, 255).astype(np.uint8)


def idx_bytes(images: np.ndarray) -> bytes:
    return b"\0\0\x08\x03" + b"".join(side.to_bytes(4, "big") for side in images.shape) + images.tobytes()


def write_chardata(path: Path, compressed: bool = True, **other: np.ndarray) -> None:
    arrays = {name: smooth(n, 28, 28).reshape(n, 784).T / 255 for name, n in (("data", 20), ("testdata", 8))}
    scipy.io.savemat(path, {"target": np.eye(3), **arrays, **other}, do_compression=compressed)


def write_cropped(path: Path, compressed: bool = True, **other: np.ndarray) -> None:
    colours = np.stack([smooth(12, 32, 32, colour) for colour in range(3)]).transpose(2, 3, 0, 1)
    labels = np.arange(12, dtype=np.uint8)[:, None] % 10 + 1
    scipy.io.savemat(path, {"X": colours, "y": labels, **other}, do_compression=compressed)


def write_pictures(folder: Path, suffix: str) -> None:
    for i, image in enumerate(smooth(6, 16, 16)):
        Image.fromarray(image).save(folder / f"{i}{suffix}")


@dataclass(frozen=True)
class Format:
    """How to make a file of a format in a folder (returning the file that gets damaged), and how to load it."""

    make: Callable[[Path], Path]
    load: Callable[[Path], Dataset]
    own_checksum: bool


def _made(name: str, write: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write(folder / name)
        return folder / name

    return make


def _pictures(suffix: str) -> Format:
    def make(folder: Path) -> Path:
        write_pictures(folder, suffix)
        return folder / f"3{suffix}"

    return Format(make, lambda path: load_own_images(path.parent), own_checksum=suffix == ".png")


def _fashion(path: Path) -> Dataset:
    return load_fashion_mnist(path, path, validation=3, counts=(9, 9))


def _svhn(path: Path) -> Dataset:
    return load_svhn(path, path, validation=3)


def _omniglot(path: Path) -> Dataset:
    return load_omniglot(path, validation=3, counts=(20, 8))


FORMATS = {
    "idx-gz": Format(
        _made("images.gz", lambda p: p.write_bytes(gzip.compress(idx_bytes(smooth(9, 28, 28)), mtime=0))),
        _fashion,
        True,
    ),
    "idx-raw": Format(_made("images", lambda p: p.write_bytes(idx_bytes(smooth(9, 28, 28)))), _fashion, False),
    "mat-omniglot": Format(_made("chardata.mat", write_chardata), _omniglot, True),
    "mat-svhn": Format(_made("train.mat", write_cropped), _svhn, True),
    "mat-uncompressed": Format(_made("train.mat", lambda p: write_cropped(p, False)), _svhn, False),
    "npy": Format(_made("x.npy", lambda p: np.save(p, smooth(9, 8, 8))), load_own_images, False),
    "npz": Format(_made("x.npz", lambda p: np.savez(p, images=smooth(9, 8, 8))), load_own_images, True),
    "npz-compressed": Format(
        _made("x.npz", lambda p: np.savez_compressed(p, images=smooth(9, 8, 8))), load_own_images, True
    ),
    "png": _pictures(".png"),
    "jpg": _pictures(".jpg"),
    "bmp": _pictures(".bmp"),
    "pgm": _pictures(".pgm"),
    "gif": _pictures(".gif"),
    "webp": _pictures(".webp"),
}
