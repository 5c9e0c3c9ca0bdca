"""Images that a trained model makes: samples of the prior, reconstructions, interpolations, and the paper's Fig. 5."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bsvi.data import Split, evaluation_batches
from bsvi.system.files import write_atomically


def draw_gallery(model: Any, test: Split, rows: int, columns: int, seed: int) -> dict[str, Tensor]:
    """Grids of images (rows, columns, 1, height, width) by name; a function of the seed alone.

    latents          each row one z of the prior, its columns images of p(x|z): little variety means that z says much (Fig. 5)
    prior            a new z for every image
    reconstructions  test images above, and p(x|z) at the encoder's mean below
    interpolations   from one test image's latent mean to another's, where there are two
    """
    generator = torch.Generator().manual_seed(seed)
    decoder: Any = model.decoder
    device = next(model.parameters()).device
    latent = decoder.latent

    def draw(z: Tensor) -> Tensor:
        return decoder.sample(z.to(device), generator=generator).cpu()

    with torch.no_grad():
        z = torch.randn(rows, latent, generator=generator)
        latents = draw(z.repeat_interleave(columns, 0)).unflatten(0, (rows, columns))
        prior = draw(torch.randn(rows * columns, latent, generator=generator)).unflatten(0, (rows, columns))
        x = next(iter(evaluation_batches(test, batch_size=min(max(columns, 2), len(test)), device=device))).x
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)  # a refinement that was trained with the model draws
            mean = model.posterior(model.encode(x)).mean
        reconstructions = torch.stack([x[:columns].cpu(), draw(mean[:columns])])
        share = torch.linspace(0, 1, columns, device=device)[None, :, None]
        pairs = min(rows, len(mean) // 2)
        path = (1 - share) * mean[0 : 2 * pairs : 2, None] + share * mean[1 : 2 * pairs : 2, None]
        interpolations = draw(path.flatten(0, 1)).unflatten(0, path.shape[:2]) if pairs else None
    grids = {"latents": latents, "prior": prior, "reconstructions": reconstructions, "interpolations": interpolations}
    return {name: images for name, images in grids.items() if images is not None}


def write_grid(path: Path, images: Tensor, within: Path) -> Path:
    """The grid as PATH.png to look at and PATH.npz to compute with; returns the PNG. No link below ``within`` is followed."""
    archive, png = io.BytesIO(), io.BytesIO()
    np.savez_compressed(archive, images=images.numpy())
    rows, columns, _, height, width = images.shape
    sheet = torch.full((rows, height + 2, columns, width + 2), 0.5)
    sheet[:, 1:-1, :, 1:-1] = images[:, :, 0].permute(0, 2, 1, 3)
    pixels = (sheet.reshape(rows * (height + 2), -1).clamp(0, 1) * 255).round().byte().numpy()
    scale = max(1, 1200 // pixels.shape[1])
    picture = Image.fromarray(pixels).resize(
        (pixels.shape[1] * scale, pixels.shape[0] * scale), Image.Resampling.NEAREST
    )
    picture.save(png, format="PNG")
    write_atomically(path.with_suffix(".npz"), archive.getvalue(), within)
    write_atomically(path.with_suffix(".png"), png.getvalue(), within)
    return path.with_suffix(".png")
