"""Pictures of the report: what each method makes of the same test images, and what it draws from the prior."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.style import MUTED, ReportFigure, find_look, new_figure
from bsvi.report.tables import make_slug
from bsvi.system.arrays import read_arrays

COLUMNS = 12  # images of a line: as many as can be seen on a phone
_BYTES = 1 << 26  # of one grid of images
_INCH = 0.35  # of the height of a line
Strip = Float[np.ndarray, "_ _"]


def draw_reconstructions(experiment: ExperimentRuns) -> ReportFigure | None:
    """Test images, and below them what each method's encoder and decoder make of them."""
    found = [(row, images) for row in experiment.rows if (images := _read_grid(row, "reconstructions")) is not None]
    if not found:
        return None
    first = found[0][1]
    same = [(row, grid) for row, grid in found if grid.shape == first.shape and np.array_equal(grid[0], first[0])]
    lines = [("test images", MUTED, _join(first[0]))]
    lines += [(row.short, find_look(row.method).colour, _join(grid[1])) for row, grid in same if len(grid) > 1]
    return _draw(
        lines,
        name=f"{make_slug(experiment.name)}-reconstructions",
        title="Reconstructions",
        caption="Test images, and one draw of p(x|z) at the mean of q(z) for each. The closer to the first line, the better.",
        alt=f"Test images and their reconstructions by {', '.join(row.label for row, _ in same)}.",
    )


def draw_samples(experiment: ExperimentRuns) -> ReportFigure | None:
    """Images of each method for z of the prior, the same z for all."""
    found = [(row, images) for row in experiment.rows if (images := _read_grid(row, "prior")) is not None]
    if not found:
        return None
    lines = [(row.short, find_look(row.method).colour, _join(grid[0])) for row, grid in found]
    return _draw(
        lines,
        name=f"{make_slug(experiment.name)}-samples",
        title="Samples",
        caption="New images: z drawn from the prior, then p(x|z). The more they look like the test images, the better.",
        alt=f"Images drawn from {', '.join(row.label for row, _ in found)}.",
    )


def _draw(lines: list[tuple[str, str, Strip]], name: str, title: str, caption: str, alt: str) -> ReportFigure:
    figure = new_figure(height=0.1 + _INCH * len(lines))
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(h_pad=0.012, hspace=0.0)  # type: ignore[call-arg]
    panels = np.atleast_1d(figure.subplots(len(lines)))
    for axes, (text, colour, strip) in zip(panels, lines, strict=True):
        axes.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        axes.set_ylabel(text, color=colour, rotation=0, ha="right", va="center", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return ReportFigure(name=name, title=title, caption=caption, alt=alt, figure=figure)


def _join(images: Float[np.ndarray, "columns channels height width"]) -> Strip:
    """Images side by side, with a grey line around each."""
    shown = np.clip(images[:COLUMNS, 0].astype(np.float64), 0, 1)
    framed = np.pad(shown, ((0, 0), (1, 1), (1, 1)), constant_values=0.5)
    return np.concatenate([*framed], axis=1)


def _read_grid(row: Row, name: str) -> Float[np.ndarray, "rows columns channels height width"] | None:
    """The images that `bsvi sample` has drawn of the row's first run that has some; None where there are none."""
    for run in row.runs:
        path = Path(run.path) / "samples" / f"{name}.npz"
        try:
            images = read_arrays(path, _BYTES).get("images")
        except (OSError, ValueError):
            continue
        if images is not None and images.ndim == 5 and images.size and images.dtype.kind == "f":
            return images if np.isfinite(images).all() else None
    return None
