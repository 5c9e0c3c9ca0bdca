"""The data sets: where their files are, how they are read and what they hold, one row each. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bsvi.tables.table import Table, later

HELD_OUT = 2000  # validation images of the public data sets


@dataclass(frozen=True)
class Source:
    """A public file: its name, the folders it can be had from (best first), and its published hash."""

    file: str
    mirrors: tuple[str, ...]
    algorithm: str  # md5, or git-blob: the SHA-1 under which git stores the file
    digest: str
    most: int = 64 << 20  # bytes; a server that sends more is cut off
    content_md5: str = ""  # of the uncompressed IDX file, whatever gzip made of it
    extra: bool = False  # more training images, which --data.no-extra leaves out


@dataclass(frozen=True)
class DataSet:
    """One row.

    load        returns a ``bsvi.data.Dataset``; called with the paths of the files in ``sources`` and with the options
    about       size and counts, for ``bsvi data list``
    licence     of the images
    likelihood  of its pixels, a row of the table of likelihoods
    shape       of one image, (1, height, width)
    valid       how many validation images, test alike: a plan needs no file where they are known
    sources     the public files
    options     keyword arguments that ``load`` understands
    title       its name in tables
    paper       whether the paper has results on it
    """

    load: Callable[..., Any]
    about: str
    licence: str
    likelihood: str
    shape: tuple[int, int, int]
    valid: int = 0
    test: int = 0
    sources: tuple[Source, ...] = ()
    options: tuple[str, ...] = ()
    title: str = ""
    paper: bool = False


_FASHION = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/",)
_OMNIGLOT = (
    "https://raw.githubusercontent.com/yburda/iwae/78a6075484bd7dd6f47a4bb9880d2295bc7a5220/datasets/OMNIGLOT/",
    "https://github.com/yburda/iwae/raw/78a6075484bd7dd6f47a4bb9880d2295bc7a5220/datasets/OMNIGLOT/",
)


def _idx_pair(mirrors: tuple[str, ...], train: tuple[str, str], test: tuple[str, str]) -> tuple[Source, ...]:
    """MNIST's two files of images, with the md5 of each file and of its content."""
    files = {"train-images-idx3-ubyte.gz": train, "t10k-images-idx3-ubyte.gz": test}
    return tuple(Source(name, mirrors, "md5", packed, content_md5=own) for name, (packed, own) in files.items())


DATA_SETS: Table[DataSet] = Table(
    "data set",
    {
        "digits": DataSet(
            load=later("bsvi.data.digits:load_digits"),
            about="8x8, 1,197 + 200 + 400 images, shipped with bsvi",
            licence="CC BY 4.0",
            likelihood="bernoulli",
            shape=(1, 8, 8),
            valid=200,
            test=400,
        ),
        "omniglot": DataSet(
            load=later("bsvi.data.omniglot:load_omniglot"),
            about="28x28, 24,345 + 8,070 images, binarised",
            licence="MIT",
            likelihood="bernoulli",
            shape=(1, 28, 28),
            valid=HELD_OUT,
            test=8_070,
            sources=(Source("chardata.mat", _OMNIGLOT, "git-blob", "016a3536ffe5e1d38e42563a18d7a78bfaf643ec"),),
            options=("validation",),
            title="Omniglot",
            paper=True,
        ),
        "svhn": DataSet(
            load=later("bsvi.data.svhn:load_svhn"),
            about="32x32, 73,257 (+ 531,131 extra) + 26,032 images, grey",
            licence="non-commercial research use",
            likelihood="logistic",
            shape=(1, 32, 32),
            valid=HELD_OUT,
            test=26_032,
            sources=(
                Source("train_32x32.mat", _SVHN, "md5", "e26dedcc434d2e4c54c9b2d4a06d8373", 512 << 20),
                Source("test_32x32.mat", _SVHN, "md5", "eb5a983be6a315427106f1b164d9cef3", 512 << 20),
                Source("extra_32x32.mat", _SVHN, "md5", "a93ce644f1a588dc4d68dda5feec44a7", 4 << 30, extra=True),
            ),
            options=("validation",),
            title="SVHN",
            paper=True,
        ),
        "fashion-mnist": DataSet(
            load=later("bsvi.data.fashion_mnist:load_fashion_mnist"),
            about="28x28, 60,000 + 10,000 images, grey",
            licence="MIT",
            likelihood="logistic",
            shape=(1, 28, 28),
            valid=HELD_OUT,
            test=10_000,
            sources=_idx_pair(
                _FASHION,
                train=("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
                test=("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
            ),
            options=("validation",),
            title="FashionMNIST",
            paper=True,
        ),
        "mnist": DataSet(
            load=later("bsvi.data.mnist:load_mnist"),
            about="28x28, 60,000 + 10,000 images, binarised",
            licence="CC BY-SA 3.0 by Keras' documentation, MIT by Hugging Face's",
            likelihood="bernoulli",
            shape=(1, 28, 28),
            valid=HELD_OUT,
            test=10_000,
            sources=_idx_pair(
                _MNIST,
                train=("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
                test=("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
            ),
            options=("validation", "binarise"),
            title="MNIST",
        ),
    },
)
