"""Figures are drawn of what there is, can be told apart without colour, and say in words what they show."""

import io
import itertools

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from bsvi.report.experiments import group_runs
from bsvi.report.figures import FIGURES, FIRST_FIGURES, draw_cost, draw_differences, draw_latent, draw_rate_distortion
from bsvi.report.paper import ORDER
from bsvi.report.runs import read_runs
from bsvi.report.series import make_metric, make_series
from bsvi.report.style import find_look, to_bytes, to_svg, use_style
from tests.report.made_runs import make_run, make_runs


def experiment_at(root):
    (experiment,) = group_runs(read_runs([root])[0])
    return experiment


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("figures")
    make_runs(root, seeds=(0, 1), steps=400, pictures=True)
    with use_style():
        return {
            figure.name.removeprefix("omniglot-small-"): figure
            for draw in (*FIRST_FIGURES, *FIGURES)
            if (figure := draw(experiment_at(root)))
        }


def test_every_figure_of_the_paper_is_there_and_more(drawn):
    expected = {"curves", "latent", "svi-gain", "buffer-gain", "buffer-weight"}  # the paper's
    assert set(drawn) == expected | {"rate-distortion", "cost", "differences", "progress"}
    for figure in drawn.values():
        assert figure.title and figure.caption and len(figure.alt) > 20


def test_png_pdf_and_svg_can_be_read_and_are_the_same_each_time(drawn):
    with use_style():
        for figure in (drawn["curves"], drawn["latent"]):
            png, pdf, svg = (
                to_bytes(figure.figure, "png"),
                to_bytes(figure.figure, "pdf"),
                to_svg(figure.figure, figure.name),
            )
            assert Image.open(io.BytesIO(png)).size[0] >= 1000 and pdf.startswith(b"%PDF")
            assert svg.startswith("<svg") and "var(--" in svg and "<metadata>" not in svg
            assert png == to_bytes(figure.figure, "png") and svg == to_svg(figure.figure, figure.name)


def test_lines_carry_their_names(drawn):
    for name, labels in (("curves", {"BSVI-k", "BSVI-k-SIR"}), ("buffer-weight", {"BSVI-k-π", "BSVI-k-SIR-π"})):
        for axes in drawn[name].figure.axes:
            assert {text.get_text() for text in axes.texts} == labels
            assert axes.get_legend() is None


def test_names_beside_lines_do_not_overlap(drawn):
    for name in ("svi-gain", "buffer-gain"):
        figure = drawn[name].figure
        figure.canvas.draw()
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        assert len(boxes) >= 5
        for one, other in itertools.combinations(boxes, 2):
            assert not one.shrunk(1, 0.75).overlaps(other.shrunk(1, 0.75))


def deficient(rgb, kind):
    """A colour as a reader without one kind of cone sees it (Viénot, Brettel and Mollon 1999, linear RGB)."""
    linear = np.array(rgb) ** 2.2
    matrix = {"protan": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]}
    matrix["deutan"] = [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]
    return np.clip(np.array(matrix[kind]) @ linear, 0, 1) ** (1 / 2.2)


def test_methods_can_be_told_apart_without_colour_and_by_colour_blind_readers():
    looks = [find_look(method) for method in ORDER]
    assert len({style.marker for style in looks}) == len(looks)
    for one, other in itertools.combinations(looks, 2):
        for kind in ("protan", "deutan"):
            apart = np.abs(deficient(to_rgb(one.colour), kind) - deficient(to_rgb(other.colour), kind)).max()
            assert apart > 0.12 or one.line != other.line


def test_colours_stand_out_from_the_page_in_light_and_dark():
    def luminance(colour):
        linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)])
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for method in ORDER:
        assert 1.05 / (luminance(find_look(method).colour) + 0.05) > 2.2  # marks and lines on white
        assert (luminance(find_look(method).dark) + 0.05) / (luminance("#14171b") + 0.05) > 5


def test_what_is_missing_is_left_out(tmp_path):
    make_run(tmp_path, "vae", 0, steps=100, ended=False)
    experiment = experiment_at(tmp_path)
    with use_style():
        assert (
            draw_rate_distortion(experiment) is None
            and draw_cost(experiment) is None
            and draw_latent(experiment) is None
        )
        assert draw_differences(experiment) is None
        assert [figure.name for draw in (*FIRST_FIGURES, *FIGURES) if (figure := draw(experiment))] == [
            "omniglot-small-progress"
        ]


def test_a_seed_that_stopped_early_does_not_bend_the_mean(tmp_path):
    make_run(tmp_path, "bsvi", 0, steps=400)
    make_run(tmp_path, "bsvi", 1, steps=400)
    short = tmp_path / "omniglot-small" / "bsvi-seed1" / "metrics.jsonl"
    lines = short.read_text().splitlines()
    short.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    line = make_series(experiment_at(tmp_path).find_row("bsvi"), "train", make_metric("bound"))
    assert np.isnan(line.mean[-1]) and np.isfinite(line.seeds[0]).all() and np.isfinite(line.end)


def test_a_broken_picture_is_passed_over(tmp_path):
    folder = make_run(tmp_path, "svi", 0, steps=100)
    (folder / "samples.png").write_bytes(b"no picture")
    assert draw_latent(experiment_at(tmp_path)) is None


def test_the_users_own_matplotlib_settings_are_left_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with use_style():
        assert matplotlib.rcParams["font.size"] == 9.5
    assert dict(matplotlib.rcParams) == before
