"""Pictures before tables: reconstructions and samples of every method that has some, and a page that begins with them."""

import numpy as np

from bsvi.report import make_report
from bsvi.report.experiments import group_runs
from bsvi.report.pictures import COLUMNS, draw_reconstructions, draw_samples
from bsvi.report.runs import read_runs
from bsvi.report.style import use_style
from tests.report.made_runs import make_run


def add_pictures(folder, seed=0, columns=20):
    noise = np.random.default_rng(seed)
    (folder / "samples").mkdir(exist_ok=True)
    test = np.random.default_rng(7).random((1, columns, 1, 8, 8)) > 0.5
    drawn = noise.random((1, columns, 1, 8, 8)) > 0.5
    for name, images in (("reconstructions", np.concatenate([test, drawn])), ("prior", np.repeat(drawn, 5, axis=0))):
        np.savez_compressed(folder / "samples" / f"{name}.npz", images=images.astype(np.float32))


def draw(root):
    (experiment,) = group_runs(read_runs([root])[0])
    with use_style():
        return draw_reconstructions(experiment), draw_samples(experiment)


def test_every_method_with_images_has_a_line_and_the_test_images_stand_above(tmp_path):
    for i, method in enumerate(("vae", "svi", "bsvi")):
        folder = make_run(tmp_path, method, 0, steps=100)
        if method != "svi":
            add_pictures(folder, seed=i)
    reconstructions, samples = draw(tmp_path)
    assert [axes.get_ylabel() for axes in reconstructions.figure.axes] == ["test images", "VAE", "BSVI-k"]
    assert [axes.get_ylabel() for axes in samples.figure.axes] == ["VAE", "BSVI-k"]
    strip = reconstructions.figure.axes[0].images[0].get_array()
    first = np.random.default_rng(7).random((1, 20, 1, 8, 8))[0, 0, 0] > 0.5
    assert strip.shape == (10, 10 * COLUMNS) and np.array_equal(strip[1:9, 1:9], first)


def test_images_of_other_test_data_are_not_put_below_these(tmp_path):
    for method, columns in (("vae", 20), ("svi", 3)):
        add_pictures(make_run(tmp_path, method, 0, steps=100), columns=columns)
    reconstructions, samples = draw(tmp_path)
    assert [axes.get_ylabel() for axes in reconstructions.figure.axes] == ["test images", "VAE"]
    assert len(samples.figure.axes) == 2


def test_damaged_images_are_left_out(tmp_path):
    folder = make_run(tmp_path, "vae", 0, steps=100)
    assert draw(tmp_path) == (None, None)
    (folder / "samples").mkdir()
    for content in (np.zeros((2, 3)), np.full((2, 3, 1, 4, 4), np.nan), np.zeros((2, 0, 1, 4, 4))):
        for name in ("reconstructions", "prior"):
            np.savez(folder / "samples" / f"{name}.npz", images=content)
        assert draw(tmp_path) == (None, None)
    (folder / "samples/prior.npz").write_bytes(b"PK\3\4 no archive")
    assert draw(tmp_path)[1] is None


def test_the_page_has_pictures_before_warnings_and_tables(tmp_path):
    for method in ("vae", "svi", "bsvi"):
        for seed in range(3):
            add_pictures(make_run(tmp_path / "runs", method, seed, steps=100, base=-90.0))
    (tmp_path / "runs/omniglot-small/vae-seed0/scores-test.npz").unlink()  # a warning
    page = make_report([tmp_path / "runs"], tmp_path / "out").read_text()
    places = [
        'class="tiles"',
        'class="summary"',
        'data-name="omniglot-small-differences"',
        "-reconstructions",
        "-samples",
    ]
    places += ['class="warnings"', "<h3>Scores</h3>", "<h3>Does the paper hold?</h3>", "<h3>Figures</h3>"]
    found = [page.index(place) for place in places]
    assert found == sorted(found)
    assert page.count('data-name="omniglot-small-differences"') == 1
    assert (tmp_path / "out/figures/omniglot-small-samples.png").exists()
