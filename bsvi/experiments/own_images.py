"""An experiment for someone's own images: networks and steps chosen from their size and kind, said in one line."""

from pathlib import Path

from bsvi.experiments.architectures import find_architecture
from bsvi.experiments.config import EXPERIMENTS, Data, Experiment, check_name

GREY = 0.25  # share of pixels that are neither dark nor bright from which on images are pictures, not drawings
LARGEST = 128  # side in pixels; larger images are to be resized
_LEAST = 8  # the residual encoder halves the sides three times


def choose(path: Path, data: Data) -> tuple[Experiment, str]:
    """The experiment for the images at ``path``, and the line that says what was chosen.

    Grey pictures keep their grey values, drawings are binarised. Small images get a small PixelCNN, larger ones or very small
    ones a fully connected pair: what trains on a CPU in minutes. ``data`` holds the size and the binarisation asked for.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "noise.npy"
    >>> np.save(path, np.random.default_rng(0).integers(0, 256, (90, 28, 28), np.uint8))
    >>> experiment, line = choose(path, Data(name=str(path)))
    >>> experiment.experiment, experiment.data.binarise, experiment.net.kind
    ('noise', 'none', 'pixelcnn')
    """
    height, width, grey = _look(path, data.size)
    if max(height, width) > LARGEST and data.size is None:
        raise ValueError(
            f"{path}: images of {height}x{width} are larger than networks are chosen for; resize them: --data.size 64 64"
        )
    binarise = data.binarise or ("none" if grey > GREY else "dynamic")
    family = "fashion-mnist" if binarise == "none" else "omniglot"
    small = min(height, width) >= _LEAST and max(height, width) <= 40
    model = EXPERIMENTS[f"{family}-{'small' if small else 'mlp'}"]
    net = EXPERIMENTS["digits"].net if small and max(height, width) <= 16 else model.net
    chosen = model.model_copy(
        update={
            "experiment": _name(path),
            "net": net,
            "data": data.model_copy(update={"name": str(path), "binarise": binarise}),
        }
    )
    words = {
        "none": "grey values kept",
        "dynamic": "0/1 pixels drawn at each visit",
        "static": "0/1 pixels drawn once",
        "threshold": "pixels cut at 0.5",
    }
    nets = find_architecture(net).describe(net)
    line = (
        f"{chosen.experiment}: images of {height}x{width}, {words[binarise]}; {nets}, {net.latent} latents, "
        f"{chosen.steps:,} steps as in {model.experiment}; flags change it: --net.kind, --data.binarise, --steps"
    )
    return chosen, line


def _look(path: Path, size: tuple[int, int] | None) -> tuple[int, int, float]:
    """Height and width of the images, and the share of their pixels between 0.1 and 0.9."""
    from bsvi.data.integrity import log
    from bsvi.data.own_images import first_images

    was, log.disabled = log.disabled, True  # the loader will say it all again
    try:
        images = first_images(path, size)
    finally:
        log.disabled = was
    return images.shape[1], images.shape[2], float(((images > 0.1) & (images < 0.9)).mean())


def _name(path: Path) -> str:
    """Under which runs are filed: the path's last part, never the name of another experiment."""
    name = path.resolve().stem.split(".")[0] or "images"
    try:
        check_name(name)
    except ValueError:
        return "own-images"
    return f"{name}-images" if name in EXPERIMENTS else name
