"""Figures over steps: training and validation curves, what SVI and the buffer add, where the learned weights go."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from bsvi.report.experiments import ExperimentRuns, Row
from bsvi.report.series import Metric, Series, changes, make_metric, make_series
from bsvi.report.style import INK, MUTED, ReportFigure, find_look, label_ends, new_figure
from bsvi.report.tables import make_slug
from bsvi.tables.methods import METHODS, find_label


def _with_buffer(*kinds: str) -> tuple[str, ...]:
    """The methods of which a proposal has weight in these ways, kind after kind."""
    return tuple(name for kind in kinds for name, row in METHODS.items() if row.buffer in kind.split())


def draw_curves(experiment: ExperimentRuns) -> ReportFigure | None:
    """The bound in training (top) and validation (bottom) for BSVI and BSVI-SIR: does resampling regularise?"""
    rows = [row for row in (experiment.find_row("bsvi"), experiment.find_row("bsvi-sir")) if row is not None]
    panels = [("train", "training bound"), ("valid", "validation bound")]
    lines = {split: _lines(rows, split, make_metric("bound")) for split, _ in panels}
    if not any(lines.values()):
        return None
    figure = new_figure(height=4.6)
    for axes, (split, name) in zip(figure.subplots(2, sharex=True), panels, strict=True):
        _draw(axes, lines[split], f"{name} (nats)", settled=True)
    figure.axes[1].set_xlabel("step")
    ends = [f"{name} {row.label} {line.end:.2f}" for split, name in panels for row, line in lines[split]]
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-curves",
        title="BSVI and BSVI-SIR: training and validation",
        caption="If BSVI is above BSVI-SIR in training and below it in validation, resampling regularises (section 6.3). "
        "Thick: mean over seeds; thin: each seed.",
        alt=f"At the end: {'; '.join(ends)}.",
        figure=figure,
    )


def draw_progress(experiment: ExperimentRuns) -> ReportFigure | None:
    """Each method's own bound in training and validation, one small panel per row."""
    rows = [row for row in experiment.rows if any(run.train or run.valid for run in row.runs)][:12]
    lines = {
        (row.label, split): make_series(row, split, make_metric("bound"))
        for row in rows
        for split in ("train", "valid")
    }
    rows = [row for row in rows if any(lines[row.label, split] is not None for split in ("train", "valid"))]
    if not rows:
        return None
    down = (len(rows) + 1) // 2
    figure = new_figure(height=0.5 + 1.35 * down)
    grid = np.atleast_1d(figure.subplots(down, 2, sharex=True, sharey=True)).ravel()
    for axes, row in zip(grid, rows, strict=False):
        for split, shape in (("train", "-"), ("valid", "--")):
            found = lines[row.label, split]
            if found is None:
                continue
            colour = find_look(row.method).colour if shape == "-" else INK
            for seed in found.seeds if len(found.seeds) > 1 else ():
                axes.plot(found.steps, seed, shape, color=colour, linewidth=0.6, alpha=0.4)
            axes.plot(found.steps, found.mean, shape, color=colour, linewidth=1.3)
        for step, method in changes(row):
            axes.axvline(step, color=MUTED, linestyle=":", linewidth=1)
            beside = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": MUTED}
            axes.annotate(find_label(method), (step, 0.04), (3, 0), fontsize=8, **beside)
        axes.set_title(row.short, color=find_look(row.method).colour)
    for axes in grid[len(rows) :]:
        axes.set_visible(False)
    _settle(grid[0], [line for line in lines.values() if line is not None])
    _steps(grid[0])
    figure.supylabel("own bound (nats)", color=INK, fontsize=9.5)
    ends = [f"{row.label} {line.end:.2f}" for row in rows if (line := lines[row.label, "train"]) is not None]
    phased = " Dotted: another method takes over (--phases)." if any(changes(row) for row in rows) else ""
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-progress",
        title="Every method's training",
        caption="Solid: training; dashed: validation; thick: mean over seeds. Each method's own bound, so panels do not compare."
        + phased,
        alt=f"Training bound at the end: {'; '.join(ends)}.",
        figure=figure,
    )


def draw_svi_gain(experiment: ExperimentRuns) -> ReportFigure | None:
    """What the SVI steps gain over the encoder's proposal, in training."""
    return _draw_over_steps(
        experiment,
        _with_buffer("uniform learned", "last"),
        make_metric("svi_k", "svi_0"),
        "svi-gain",
        "What SVI adds: SVI-k minus SVI-0",
        "SVI-k − SVI-0 (nats)",
        caption="The difference between the bounds of the last and the first proposal in training (section 6.5). Above 0: the "
        "steps improve on the encoder.",
    )


def draw_buffer_gain(experiment: ExperimentRuns) -> ReportFigure | None:
    """What the buffer gains over the last proposal alone, in training."""
    return _draw_over_steps(
        experiment,
        _with_buffer("uniform learned"),
        make_metric("bsvi_k", "svi_k"),
        "buffer-gain",
        "What the buffer adds: BSVI-k minus SVI-k",
        "BSVI-k − SVI-k (nats)",
        caption="The difference between the buffered bound and that of the last proposal in training (section 6.5).",
    )


def draw_buffer_weights(experiment: ExperimentRuns) -> ReportFigure | None:
    """Where the learned buffer weight lies: 0 is the encoder's proposal, 1 the last."""
    return _draw_over_steps(
        experiment,
        _with_buffer("learned"),
        make_metric("buffer_weight_average"),
        "buffer-weight",
        "Where π goes: buffer weight average",
        "average of i/k under π",
        caption="0 is the encoder's proposal, 1 the last one; uniform weights lie at 1/2 (dashed). Above: π prefers later "
        "proposals (section 6.5).",
        level=0.5,
    )


def draw_rates(experiment: ExperimentRuns) -> ReportFigure | None:
    """The learned rate of each step of a refinement that was trained end to end, over training; a panel for each row."""
    found = {row.label: (row, _find_rates(row)) for row in experiment.rows}
    panels = [(row, rates) for row, rates in found.values() if rates][:6]
    if not panels:
        return None
    figure = new_figure(height=0.6 + 2.2 * len(panels))
    for axes, (row, rates) in zip(np.atleast_1d(figure.subplots(len(panels), sharex=True)), panels, strict=True):
        for number, line in enumerate(rates):
            shade = 1.0 - 0.7 * number / max(1, len(rates) - 1)
            axes.plot(line.steps, line.mean, color=find_look(row.method).colour, alpha=shade)
        axes.set_yscale("log")
        axes.set_ylabel("rate")
        axes.set_title(row.short, color=find_look(row.method).colour)
        _steps(axes)
        axes.margins(x=0.01)
        label_ends(axes, [(line.end, f"step {n}", find_look(row.method).colour) for n, line in enumerate(rates, 1)])
    figure.axes[-1].set_xlabel("update")
    ends = [f"{row.label} {', '.join(f'{line.end:.3g}' for line in rates)}" for row, rates in panels]
    return ReportFigure(
        name=f"{make_slug(experiment.name)}-rates",
        title="What the steps have learned: their rates",
        caption="The learned rate of each step, a geometric mean over the coordinates of λ and a mean over seeds; later steps "
        "are paler. They start at the SVI rate.",
        alt=f"At the end, step after step: {'; '.join(ends)}.",
        figure=figure,
    )


def _find_rates(row: Row) -> list[Series]:
    lines = (make_series(row, "train", make_metric(f"rate_{number}")) for number in range(1, 65))
    return [line for line in lines if line is not None]


def _draw_over_steps(
    experiment: ExperimentRuns,
    methods: tuple[str, ...],
    read: Metric,
    name: str,
    title: str,
    ylabel: str,
    *,
    caption: str,
    level: float | None = None,  # of a dashed line to compare with
) -> ReportFigure | None:
    rows = [row for row in (experiment.find_row(method) for method in methods) if row is not None]
    lines = _lines(rows, "train", read)
    if not lines:
        return None
    figure = new_figure()
    axes = figure.subplots()
    if level is not None:
        axes.axhline(level, color=MUTED, linestyle="--", linewidth=1)
    _draw(axes, lines, ylabel)
    axes.set_xlabel("step")
    ends = [f"{row.label} {line.end:.3g}" for row, line in lines]
    return ReportFigure(
        f"{make_slug(experiment.name)}-{name}", title, caption, f"At the end: {'; '.join(ends)}.", figure
    )


def _lines(rows: list[Row], split: str, read: Metric) -> list[tuple[Row, Series]]:
    found = [(row, make_series(row, split, read)) for row in rows]
    return [(row, line) for row, line in found if line is not None]


def _draw(axes: Axes, lines: list[tuple[Row, Series]], ylabel: str, settled: bool = False) -> None:
    for row, line in lines:
        style = find_look(row.method)
        for seed in line.seeds if len(line.seeds) > 1 else ():
            axes.plot(line.steps, seed, color=style.colour, linewidth=0.6, alpha=0.4)
        axes.plot(line.steps, line.mean, style.line, color=style.colour)
    axes.set_ylabel(ylabel)
    _steps(axes)
    if settled:
        _settle(axes, [line for _, line in lines])
    axes.margins(x=0.01)
    label_ends(axes, [(line.end, row.short, find_look(row.method).colour) for row, line in lines])


def _settle(axes: Axes, lines: list[Series]) -> None:
    """Show where the lines end up: the first steps of training would flatten everything after them."""
    late = (
        np.concatenate([line.seeds[:, line.seeds.shape[1] // 10 :].ravel() for line in lines]) if lines else np.zeros(0)
    )
    late = late[np.isfinite(late)]
    if late.size and late.max() > late.min():
        space = 0.08 * (late.max() - late.min())
        axes.set_ylim(late.min() - space, late.max() + space)


def _steps(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}")
    )
