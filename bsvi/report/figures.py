"""The report's figures: the paper's, and the plane, cost and differences beside them. Each is drawn if its data are there."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from PIL import Image

from bsvi.report.curves import (
    draw_buffer_gain,
    draw_buffer_weights,
    draw_curves,
    draw_progress,
    draw_rates,
    draw_svi_gain,
)
from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.measures import measure_rows_difference
from bsvi.report.pictures import draw_reconstructions, draw_samples
from bsvi.report.style import LINE, MUTED, ReportFigure, find_look, label_points, new_figure
from bsvi.report.tables import make_slug
from bsvi.system.files import open_to_read

_MOST_PIXELS = 50_000_000  # of a picture, before it is made smaller


def draw_differences(experiment: ExperimentRuns) -> ReportFigure | None:
    """Log-likelihood of each method minus SVI's (or the VAE's), paired, with intervals."""
    references = [
        row
        for row in (experiment.find_row("svi"), experiment.find_row("vae"))
        if row is not None and row.select_scored("test")
    ]
    rows = [row for row in experiment.rows if row.select_scored("test") and row not in references[:1]]
    if not references or not rows:
        return None
    base = references[0]
    found = [(row, measure_rows_difference(row, base, "log_likelihood").interval) for row in rows]
    known = [(row, interval) for row, interval in found if interval is not None]
    if not known:
        return None
    figure = new_figure(height=0.9 + 0.32 * len(known))
    axes = figure.subplots()
    axes.axvline(0, color=MUTED, linewidth=1)
    beyond = sum(row.beyond for row, _ in known)  # the last of the rows
    if 0 < beyond < len(known):
        axes.axhline(beyond - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        text = "above: the paper’s methods; below: beyond the paper"
        axes.annotate(
            text,
            (1, beyond - 0.5),
            (0, 2),
            ("axes fraction", "data"),
            "offset points",
            ha="right",
            color=MUTED,
            fontsize=7.5,
        )
    for i, (row, interval) in enumerate(reversed(known)):
        style = find_look(row.method)
        if np.isfinite(interval.low):
            axes.plot([interval.low, interval.high], [i, i], color=style.colour, linewidth=2.4, solid_capstyle="butt")
        axes.plot([interval.mean], [i], style.marker, color=style.colour, markersize=7)
    axes.set_yticks(range(len(known)), [row.short for row, _ in reversed(known)])
    axes.set_ylim(-0.6, len(known) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"test log-likelihood minus that of {base.short} (nats)")
    parts = [f"{row.label} {interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]" for row, interval in known]
    one = " One seed: the intervals cover examples alone." if any(i.seeds < 2 for _, i in known) else ""
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-differences",
        title=f"Where each method stands: gain over {base.label}",
        caption="Right is better. Paired differences in test log-likelihood, with 95% intervals over seeds and examples: "
        f"a bar that touches the line at 0 shows no difference.{one}",
        alt=f"Difference to {base.label} in nats: {'; '.join(parts)}.",
        figure=figure,
    )


def draw_rate_distortion(experiment: ExperimentRuns) -> ReportFigure | None:
    """KL* against Reconstruction*, with lines of equal ELBO*."""
    points = [(row, row.means("test", "kl"), row.means("test", "reconstruction")) for row in experiment.rows]
    points = [(row, rate, distortion) for row, rate, distortion in points if rate and len(rate) == len(distortion)]
    if not points:
        return None
    figure = new_figure(height=3.7)
    axes = figure.subplots()
    for row, rate, distortion in points:
        style = find_look(row.method)
        axes.plot(rate, distortion, style.marker, color=style.colour, markersize=3.5, alpha=0.45)
        axes.plot([np.mean(rate)], [np.mean(distortion)], style.marker, color=style.colour, markersize=8)
    axes.margins(0.16)
    axes.set_xlabel("rate, KL* (nats)")
    axes.set_ylabel("distortion, Reconstruction* (nats)")
    _equal_elbo(axes)
    label_points(
        axes, [(float(np.mean(x)), float(np.mean(y)), row.short, find_look(row.method).colour) for row, x, y in points]
    )
    parts = [f"{row.label} {np.mean(x):.2f}, {np.mean(y):.2f}" for row, x, y in points]
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-rate-distortion",
        title="Rate and distortion",
        caption="Test set; right means more use of the latent, down a better reconstruction. Grey lines: equal ELBO*. "
        "Large: mean over seeds; small: each seed.",
        alt=f"KL* and Reconstruction* in nats: {'; '.join(parts)}.",
        figure=figure,
    )


def draw_cost(experiment: ExperimentRuns) -> ReportFigure | None:
    """Log-likelihood against decoder calls and against time per step, relative to the VAE."""
    vae = experiment.find_row("vae")
    base = vae.pace if vae is not None else None
    scale = base or 1.0
    time_name = "time per step, ratio to VAE" if base else "seconds per step"
    panels = []
    for name, title, factor in (
        ("decoder_calls", "decoder calls per example and step", 1.0),
        ("seconds", time_name, scale),
    ):
        points = [
            (row, row.pace if name == "seconds" else _mean(row, name), row.means("test", "log_likelihood"))
            for row in experiment.rows
        ]
        known = [(row, at / factor, means) for row, at, means in points if at is not None and means]
        if known:
            panels.append((title, known))
    if not panels:
        return None
    figure = new_figure(height=2.75 * len(panels))
    for axes, (title, known) in zip(np.atleast_1d(figure.subplots(len(panels))), panels, strict=True):
        for row, at, means in known:
            style = find_look(row.method)
            axes.errorbar(
                [at], [np.mean(means)], [_deviation(means)], fmt=style.marker, color=style.colour, markersize=7
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(0.12, 0.16)
        axes.set_xlabel(title)
        axes.set_ylabel("log-likelihood (nats)")
        label_points(
            axes,
            [(at, float(np.mean(m)), row.short, find_look(row.method).colour) for row, at, m in known],
            [_deviation(m) for *_, m in known],
        )
    parts = [f"{row.label} {at:.2f}, {np.mean(means):.2f}" for row, at, means in panels[-1][1]]
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-cost",
        title="Cost and log-likelihood",
        caption="Up and left is better. Bars: standard deviation over seeds. Times are those of these runs, of the fastest seed.",
        alt=f"{panels[-1][0]} and test log-likelihood: {'; '.join(parts)}.",
        figure=figure,
    )


def draw_latent(experiment: ExperimentRuns) -> ReportFigure | None:
    """The pictures of `bsvi sample`: SVI above BSVI-SIR as in the paper, or whatever methods have some."""
    methods = [method for method in ("svi", "bsvi-sir") if _picture(experiment.find_row(method)) is not None]
    rows = [experiment.find_row(method) for method in methods] if methods else experiment.rows
    found = [(row, picture) for row in rows if row is not None and (picture := _picture(row)) is not None][:4]
    if not found:
        return None
    sizes = [picture.shape[0] / picture.shape[1] for _, picture in found]
    figure = new_figure(height=min(8.0, sum(5.4 * size + 0.35 for size in sizes)))
    panels = np.atleast_1d(figure.subplots(len(found), height_ratios=sizes))
    for axes, (row, picture) in zip(panels, found, strict=True):
        axes.imshow(picture, cmap="gray", interpolation="nearest")
        axes.set_title(row.short, color=find_look(row.method).colour)
        axes.set_axis_off()
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-latent",
        title="Images from the decoder",
        caption="Each row is one z from the prior, drawn from several times: the more alike the images of a row, the more "
        "z says (section 6.4).",
        alt=f"Sampled images of {', '.join(row.label for row, _ in found)}.",
        figure=figure,
    )


# Each returns None where its data are missing; all are to be called within `use_style()`.
FIRST_FIGURES: tuple[Callable[[ExperimentRuns], ReportFigure | None], ...] = (  # before the tables
    draw_differences,
    draw_reconstructions,
    draw_samples,
)
FIGURES: tuple[Callable[[ExperimentRuns], ReportFigure | None], ...] = (
    draw_curves,
    draw_rate_distortion,
    draw_cost,
    draw_svi_gain,
    draw_buffer_gain,
    draw_buffer_weights,
    draw_rates,
    draw_latent,
    draw_progress,
)


def _equal_elbo(axes: Axes) -> None:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    totals = MaxNLocator(7).tick_values(left + low, right + high)
    for total in totals:
        axes.plot([left, right], [total - left, total - right], color=LINE, linewidth=1, zorder=0)
        at = total - high if total - high > left else left
        if left <= at < right - 0.12 * (right - left) and low < total - at:
            text = f"{-total:g}".replace("-", "−")
            axes.annotate(
                text, (at, total - at), (4, -2), textcoords="offset points", va="top", color=MUTED, fontsize=7.5
            )
    axes.grid(visible=False)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)


def _deviation(means: list[float]) -> float:
    return float(np.std(means, ddof=1)) if len(means) > 1 else 0.0


def _mean(row: Row, name: str) -> float | None:
    values = [value for value in (run.per_step(name) for run in row.runs) if value is not None]
    return float(np.mean(values)) if values else None


def _picture(row: Row | None) -> np.ndarray | None:
    """The first picture of the row's runs that can be read; None if there is none."""
    paths = [(path, run.path) for run in (row.runs if row else []) for path in run.pictures]
    for path, folder in paths:
        try:
            with open_to_read(path, folder) as file, Image.open(file, formats=["PNG"]) as image:
                if image.width * image.height > _MOST_PIXELS:
                    continue
                image.thumbnail((1600, 1600))
                return np.asarray(image.convert("L" if image.mode in ("1", "L", "I", "F") else "RGB"))
        except Exception:  # decoders raise nearly anything for damage; a bomb and a link among it
            continue
    return None
