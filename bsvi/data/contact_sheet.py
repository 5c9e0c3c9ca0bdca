"""One PNG with images of every split, to see at a glance whether they stand upright and are what they should be."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from bsvi.data.dataset import Dataset, Split

_ROWS = 6
_GAP, _TITLE = 2, 16


def write_contact_sheet(dataset: Dataset, path: Path) -> Path:
    """Return the path of a PNG with 36 evenly spaced images of each split, in grey, under the split's name and size.

    >>> import tempfile
    >>> from bsvi.data import load_digits
    >>> write_contact_sheet(load_digits(), Path(tempfile.mkdtemp()) / "digits.png").name
    'digits.png'
    """
    panels = [_panel(split) for split in dataset.splits]
    gap = 4 * _GAP
    width = sum(panel.shape[1] for panel in panels) + gap * (len(panels) + 1)
    sheet = Image.new("L", (width, panels[0].shape[0] + _TITLE + 2 * gap), 255)
    draw = ImageDraw.Draw(sheet)
    at = gap
    for split, panel in zip(dataset.splits, panels, strict=True):
        draw.text((at, gap // 2), f"{split.name}  {len(split):,}", fill=0)
        sheet.paste(Image.fromarray(panel), (at, _TITLE + gap))
        at += panel.shape[1] + gap
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG")
    return path


def _panel(split: Split) -> UInt8[np.ndarray, "height width"]:
    positions = torch.linspace(0, len(split) - 1, min(_ROWS * _ROWS, len(split))).round().long()
    grey = (split.grey(positions)[:, 0] * 255).round().to(torch.uint8).numpy()
    scale = max(1, 40 // grey.shape[2])
    images = grey.repeat(scale, 1).repeat(scale, 2)
    height, width = images.shape[1] + _GAP, images.shape[2] + _GAP
    panel = np.full((_ROWS * height, _ROWS * width), 128, np.uint8)
    for i, image in enumerate(images):
        row, column = i // _ROWS * height, i % _ROWS * width
        panel[row : row + height - _GAP, column : column + width - _GAP] = image
    return panel
