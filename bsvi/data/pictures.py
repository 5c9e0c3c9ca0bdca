"""A folder of pictures, read with pillow: grey, upright, of one size, and nothing larger than it should be."""

import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from bsvi.data.integrity import BadFile, log, read_record, verify, warn_of_unguarded

# Formats that pillow decodes by itself; others can call outside programs or hold several kinds of content.
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".gif": "GIF", ".pgm": "PPM", ".webp": "WEBP"}
MAX_PIXELS = 50_000_000  # of one picture before resizing; a decompression bomb is refused before it is decoded
_MODES = {"1", "L", "LA", "P", "RGB", "RGBA"}


def find_pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its subfolders, in the order of their relative names."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in FORMATS and path.is_file()]
    for path in found:
        name = path.relative_to(folder).as_posix()
        if not name.isprintable():  # it would break the lines of SHA256SUMS, of logs and of the screen
            raise BadFile(folder, "names of printable characters", f"{ascii(name)[:120]}; rename it")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def read_pictures(
    folder: Path, size: tuple[int, int] | None = None, top: Path | None = None, most: int | None = None
) -> UInt8[np.ndarray, "n height width"]:
    """Return all pictures of a folder, or the first `most`, as 8-bit grey values; `size` (height, width) crops and resizes.

    Colour becomes grey by the luminance of ITU-R 601, transparency lies on white, a camera's rotation is applied.
    Hashes are looked up in the record of `top`, the folder itself if None.
    """
    paths = find_pictures(folder)[:most]
    if not paths:
        raise BadFile(folder, f"pictures ({', '.join(FORMATS)})", "none")
    top = folder if top is None else top
    warn_of_folders(folder, paths)
    sums, unguarded, images = read_record(top), 0, []
    for path in paths:
        unguarded += not verify(path, FORMATS[path.suffix.lower()] == "PNG", top, sums)
        images.append(_read(path, size))
        if images[-1].shape != images[0].shape:
            (height, width), (h, w) = images[0].shape, images[-1].shape
            raise BadFile(
                path,
                f"{height}x{width} pixels as in {paths[0].name}",
                f"{h}x{w}; give a size to resize to (--size, in bsvi train --data.size)",
            )
    if unguarded:
        warn_of_unguarded(folder, unguarded)
    return np.stack(images)


def warn_of_folders(folder: Path, paths: list[Path]) -> None:
    """Log that the pictures of several folders become one set: it may not be meant."""
    folders = sorted({path.relative_to(folder).parent.as_posix() for path in paths})
    if len(folders) > 1:
        names = ", ".join(folders[:5]) + (", ..." if len(folders) > 5 else "")
        log.warning(
            "%s: %s pictures of %d folders (%s) are taken together", folder, f"{len(paths):,}", len(folders), names
        )


def resize(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the middle of the picture that has the shape of `size` (height, width), resized to it."""
    return ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)


def _read(path: Path, size: tuple[int, int] | None) -> UInt8[np.ndarray, "height width"]:
    kind = FORMATS[path.suffix.lower()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # pillow warns of bombs and of damage that it works around
            if kind == "PNG":
                with Image.open(path, formats=[kind]) as picture:
                    picture.verify()  # the checksums of all chunks: decoding alone lets some flips near the end pass
            with Image.open(path, formats=[kind]) as picture:
                width, height = picture.size
                if width * height > MAX_PIXELS:
                    raise BadFile(path, f"at most {MAX_PIXELS:,} pixels", f"{width}x{height}")
                if getattr(picture, "is_animated", False):
                    raise BadFile(path, "one picture", "several frames")
                if picture.mode not in _MODES:
                    raise BadFile(path, "8-bit grey or colour", f"mode {picture.mode}; convert it first")
                picture.load()
                grey = _grey(ImageOps.exif_transpose(picture))
    except BadFile:
        raise
    except Exception as error:  # decoders raise nearly anything for damage; a bomb and an unknown format among it
        raise BadFile(path, f"a sound {kind} picture of at most {MAX_PIXELS:,} pixels", _line(error)) from None
    return np.asarray(grey if size is None else resize(grey, size))


def _grey(picture: Image.Image) -> Image.Image:
    if picture.mode in ("RGBA", "LA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        picture = Image.alpha_composite(paper, layer).convert("RGB")
    return picture.convert("L")


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
