"""How figures look: colours that colour-blind readers can tell apart, line styles for print, labels at the lines."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from bsvi.tables.methods import METHODS, Look

INK, MUTED, LINE = "#1a1a1b", "#6b6b6c", "#dededf"  # the page replaces these by its own light or dark colours
_RC: dict[str, Any] = {
    "font.size": 9.5,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


@dataclass(frozen=True)
class ReportFigure:
    """A figure with the words that go with it; `alt` says what it shows to those who cannot see it."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure

    def __post_init__(self) -> None:
        # lays it out, and again as other ticks may need more room; then it stays, whatever the format
        for _ in range(2):
            self.figure.canvas.draw()
        self.figure.set_layout_engine("none")


def find_look(method: str) -> Look:
    """The method's colours, line and marker.

    >>> find_look("bsvi").colour, find_look("my-method").marker
    ('#0072b2', 'o')
    """
    return METHODS[method].look if method in METHODS else Look()


def find_looks() -> dict[str, Look]:
    """The methods that have colours of their own."""
    return {method: row.look for method, row in METHODS.items() if row.look.colour != Look().colour}


@contextmanager
def use_style() -> Iterator[None]:
    """A context in which figures are made and saved in this style, whatever the user's matplotlib is set to."""
    settings: Any = dict(matplotlib.rcParamsDefault) | _RC
    settings.pop("backend", None)
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # matplotlib's remarks on strange data; the page has warnings of its own
        yield


def new_figure(width: float = 5.4, height: float = 3.3) -> Figure:
    """An empty figure of the given size in inches, for a column of a paper and for half a page's width."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as 'png' or 'pdf', the same bytes for the same figure."""
    out = io.BytesIO()
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(out, format=kind, facecolor="white", metadata=metadata)
    return out.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an SVG element for the page, whose colours follow light and dark."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    start = svg.index("<metadata>") if "<metadata>" in svg else -1
    if start >= 0:
        svg = svg[:start] + svg[svg.index("</metadata>") + len("</metadata>") :]
    for colour, variable in [(INK, "ink"), (MUTED, "muted"), (LINE, "line")]:
        svg = svg.replace(colour, f"var(--{variable})")
    for method, colours in find_looks().items():
        svg = svg.replace(colours.colour, f"var(--{method})")
    width, height = (f"{inches * 72:g}" for inches in figure.get_size_inches())
    head, rest = svg.split(">", 1)
    attributes = f'<svg class="figure" viewBox="0 0 {width} {height}" xmlns:xlink="http://www.w3.org/1999/xlink" '
    return f'{attributes}aria-hidden="true" focusable="false">{rest}' if head else svg


def make_palette(dark: bool = False) -> str:
    """The methods' colours as CSS variables."""
    return "".join(f"--{method}:{own.dark if dark else own.colour};" for method, own in find_looks().items())


def label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names beside the right ends of lines (y, text, colour), moved apart where they would overlap."""
    axes.figure.canvas.draw()  # so that limits and sizes are final
    height = axes.get_window_extent().height
    apart = 12.5 * axes.figure.dpi / 72 / height  # one line of text, as a share of the axes
    spots = sorted((axes.transAxes.inverted().transform(axes.transData.transform((0, y)))[1], t, c) for y, t, c in ends)
    placed = _spread([at for at, _, _ in spots], apart)
    for (_, text, colour), at in zip(spots, placed, strict=True):
        axes.annotate(
            text, (1, at), (5, 0), "axes fraction", "offset points", color=colour, va="center", annotation_clip=False
        )


def _spread(places: list[float], apart: float) -> list[float]:
    """Ascending places moved as little as they can be to lie at least `apart` from each other.

    >>> _spread([0.5, 0.5, 0.9], 0.2)
    [0.4, 0.6, 0.9]
    """
    groups: list[tuple[float, int]] = []  # middle and size of the groups that have run into each other
    for place in places:
        groups.append((place, 1))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < apart * (groups[-1][1] + groups[-2][1]) / 2 - 1e-12:
            (low, few), (high, many) = groups[-2], groups[-1]
            groups[-2:] = [((low * few + high * many) / (few + many), few + many)]
    return [middle + apart * (i - (size - 1) / 2) for middle, size in groups for i in range(size)]


def label_points(axes: Axes, points: list[tuple[float, float, str, str]], errors: list[float] | None = None) -> None:
    """Write names beside points (x, y, text, colour), each on the side where it covers the least, error bars included."""
    axes.figure.canvas.draw()
    renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    scale = axes.figure.dpi / 72
    spots = [axes.transData.transform((x, y)) for x, y, _, _ in points]
    taken = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in spots]
    for (x, y, _, _), error in zip(points, errors or [], strict=False):
        taken.append(Bbox(axes.transData.transform([(x, y - error), (x, y + error)])).padded(2 * scale))
    inside = axes.get_window_extent()
    for (x, y, text, colour), own in zip(points, list(taken), strict=False):
        best = None
        for dx, dy, side, base in _SIDES:
            leader = (
                {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
                if abs(dx) > 9
                else None
            )
            note = axes.annotate(
                text, (x, y), (dx, dy), textcoords="offset points", ha=side, va=base, color=colour, arrowprops=leader
            )
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer)  # of the text alone, without its leader
            cost = sum(_overlap(box, other) for other in taken if other is not own)
            outside = box.width * box.height - _overlap(box, inside)
            if best is None or cost + outside < best[0] - 1:
                if best is not None:
                    best[1].remove()
                best = (cost + outside, note, box)
            else:
                note.remove()
        if best is not None:
            taken.append(best[2])


_SIDES = [(8, 0, "left", "center"), (-8, 0, "right", "center"), (0, 8, "center", "bottom"), (0, -8, "center", "top")]
_SIDES += [(7, 8, "left", "bottom"), (7, -8, "left", "top"), (-7, 8, "right", "bottom"), (-7, -8, "right", "top")]
_SIDES += [
    (16, 18, "left", "bottom"),
    (16, -18, "left", "top"),
    (-16, 18, "right", "bottom"),
    (-16, -18, "right", "top"),
]


def _overlap(one: Any, other: Any) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(width, 0) * max(height, 0))
