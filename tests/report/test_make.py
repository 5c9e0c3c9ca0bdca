"""make_report(): one command, one folder; it survives whatever lies in the run folders, and follows runs that go on."""

import importlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bsvi.commands.report import main as report_command
from bsvi.report import make_report
from tests.report.made_runs import make_run, make_runs


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of the rest: figures take most of a report's time."""
    monkeypatch.setattr("bsvi.report.make.FIGURES", ())
    monkeypatch.setattr("bsvi.report.make.FIRST_FIGURES", ())


class Parsed(HTMLParser):
    """Collects attributes and checks that tags are closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.attributes, self.ids, self.text = [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [value for name, value in attributes if name == "id" and "svg" not in self.open]
        if tag not in ("meta", "link", "br", "img", "hr", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    make_runs(root / "runs", ("vae", "svi", "bsvi", "bsvi-sir"), (0, 1, 2), steps=200)
    return make_report([root / "runs"], root / "out")


def test_page_tables_and_figures_lie_in_one_folder(report):
    assert report.name == "index.html"
    tables = {path.name for path in (report.parent / "tables").iterdir()}
    figures = {path.name for path in (report.parent / "figures").iterdir()}
    names = ["scores-test", "scores-train", "iwae-test", "differences-test", "claims", "cost", "runs"]
    assert tables == {f"omniglot-small-{name}.{kind}" for name in names for kind in ("md", "tex", "csv")}
    assert {"omniglot-small-curves.png", "omniglot-small-curves.pdf", "omniglot-small-cost.pdf"} <= figures


def test_the_page_is_well_formed_and_asks_nothing_of_the_network(report):
    text = report.read_text()
    parsed = Parsed(text)
    assert len(set(parsed.ids)) == len(parsed.ids), "an id twice"
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action"):
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_the_page_says_in_words_what_came_out(report):
    words = " ".join(Parsed(report.read_text()).text)
    for expected in (
        "4 methods with 3 seeds each: 12 runs, all scored on 60 test examples.",
        "has the highest test",
        "hold",
    ):
        assert expected in words


@pytest.mark.usefixtures("no_figures")
def test_with_one_seed_no_method_is_recommended(tmp_path):
    make_runs(tmp_path / "runs", ("vae", "bsvi-sir"), (0,), steps=200)
    words = " ".join(Parsed(make_report([tmp_path / "runs"], tmp_path / "out").read_text()).text)
    assert "With one seed nothing can be shown" in words
    assert "the cheapest of these" not in words


def test_reports_are_made_without_torch(tmp_path):
    make_run(tmp_path / "runs", "vae", 0, steps=100, ended=False)
    code = (
        "import sys; from pathlib import Path; from bsvi.report import make_report; "
        f"make_report([Path({str(tmp_path / 'runs')!r})], Path({str(tmp_path / 'out')!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("no_figures")
def test_names_of_strangers_cannot_run_code_or_leave_the_folder(tmp_path):
    folder = make_run(tmp_path / "runs", "vae", 0, steps=100)
    config = json.loads((folder / "config.json").read_text())
    config |= {"experiment": "../../<img src=x onerror=alert(1)>", "method": "<script>alert(2)</script>"}
    config["config"]["net"]["kind"] = '"><script>alert(3)</script>'
    (folder / "config.json").write_text(json.dumps(config))
    page = make_report([tmp_path / "runs"], tmp_path / "out")
    assert page.read_text().count("<script>") == 1 and "<img" not in page.read_text()
    made = [path for path in tmp_path.rglob("*") if path.is_file() and "runs" not in path.parts]
    assert all((tmp_path / "out") in path.parents for path in made)


@pytest.mark.usefixtures("no_figures")
def test_names_in_other_scripts_and_long_or_like_ones_keep_their_own_files(tmp_path):
    names = ["数字", "字数", "Цифры", "цифры", "a b", "a-b", "notes", "long" * 100, "lo", "\ud800", ""]
    for i, name in enumerate(names):
        folder = make_run(tmp_path / "runs" / str(i), "vae", 0, steps=100, scores=())
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"experiment": name}))
    page = make_report([tmp_path / "runs"], tmp_path / "out")
    files = {path.name for path in (tmp_path / "out" / "tables").glob("*-runs.csv")}
    assert (
        len(files) == len(names) - 1
        and {  # all but half a character, which is damage: named on the page
            "数字-runs.csv",
            "字数-runs.csv",
            "a-b-runs.csv",
        }
        <= files
    )
    parsed = Parsed(page.read_text())
    assert len(set(parsed.ids)) == len(parsed.ids), "an anchor twice"


def test_mistakes_are_one_clear_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; a report needs run folders"):
        make_report([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(ValueError, match="no run folder"):
        make_report([tmp_path], tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        make_report([tmp_path], tmp_path / "file")


def test_partial_runs_make_a_page_with_warnings(tmp_path):
    runs = tmp_path / "runs"
    make_run(runs, "vae", 0, steps=100)
    fresh = make_run(runs, "svi", 0, steps=100, ended=False)
    (fresh / "metrics.jsonl").unlink()
    half = make_run(runs, "bsvi", 0, steps=100, ended=False)
    (half / "metrics.jsonl").write_text((half / "metrics.jsonl").read_text() + '{"split": "tr')
    lost = make_run(runs, "bsvi-sir", 0, steps=100)
    (lost / "scores-test.npz").write_bytes(b"PK broken")
    (runs / "empty").mkdir()
    (runs / "empty" / "config.json").write_text("")
    words = " ".join(Parsed(make_report([runs], tmp_path / "out").read_text()).text)
    for expected in (
        "no metrics yet",
        "running",
        "scores-test.npz cannot be read",
        "config.json cannot be read",
        "1 warning",
    ):
        assert expected in words
    assert "could not be made" not in words


def refuse(monkeypatch, name, bad):
    """The function of that name, which now raises where `bad` says so."""
    module, function = name.rsplit(".", 1)
    real = getattr(importlib.import_module(module), function)

    def refusing(*arguments):
        if bad(*arguments):
            raise ValueError("a shape that nobody has")
        return real(*arguments)

    monkeypatch.setattr(name, refusing)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("broken", ["huge", "digit", "read", "group"])
def test_one_bad_run_folder_is_a_named_warning_and_the_others_are_shown(tmp_path, monkeypatch, broken):
    make_runs(tmp_path / "runs", ("vae", "bsvi"), (0, 1), steps=100)
    bad = make_run(tmp_path / "runs", "svi", 0, steps=100)
    if broken == "huge":
        (bad / "result.json").write_text(json.dumps({"steps": 10**400, "seconds": 10**400}))
    elif broken == "digit":
        scores = json.loads((bad / "scores.json").read_text())
        scores["test"]["iwae"] = {"²": {"mean": 1.0}}
        (bad / "scores.json").write_text(json.dumps(scores))
    elif broken == "read":
        refuse(monkeypatch, "bsvi.report.runs._read_scores", lambda folder, *_: folder == bad)
    else:
        refuse(monkeypatch, "bsvi.report.make.group_runs", lambda runs: any(run.path == bad for run in runs))
    words = " ".join(Parsed(make_report([tmp_path / "runs"], tmp_path / "out").read_text()).text)
    assert "BSVI-k has the highest test" in words and "could not be made" not in words
    if broken in ("read", "group"):
        assert str(bad) in words and "the folder is left out" in words


def strange(value, noise):
    """The same tree with some leaves replaced by what no writer would write."""
    if isinstance(value, dict):
        kept = {key: strange(inner, noise) for key, inner in value.items() if noise.random() > 0.03}
        return kept if noise.random() > 0.03 else None
    if noise.random() < 0.06:
        return noise.choice(
            np.array([None, "text", float("nan"), float("inf"), [], {}, True, -1, 10**30], dtype=object)
        )
    return value


@pytest.mark.usefixtures("no_figures")  # drawn in the slow sample below
@pytest.mark.parametrize("seed", range(4))
def test_no_strange_value_crashes_the_report(tmp_path, seed):
    _strange_report(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 12))
def test_no_strange_value_crashes_the_report_or_its_figures(tmp_path, seed):
    _strange_report(tmp_path, seed)


def _strange_report(tmp_path, seed):
    noise = np.random.default_rng(seed)
    for folder in make_runs(tmp_path / "runs", ("vae", "svi", "bsvi", "bsvi-sir", "bsvi-pi"), (0, 1), steps=100):
        for name in ("config.json", "result.json", "scores.json"):
            (folder / name).write_text(json.dumps(strange(json.loads((folder / name).read_text()), noise)))
        lines = [strange(json.loads(line), noise) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = make_report([tmp_path / "runs"], tmp_path / "out").read_text()
    Parsed(text)
    assert "could not be made" not in text, re.findall(r"[^>]*could not be made[^<]*", text)


def test_watching_follows_the_runs_and_ends_with_a_page_that_stands_still(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    seen, waits, said = [], [], []

    def wait(seconds):
        waits.append(seconds)
        page = out / "index.html"
        seen.append((page.stat().st_mtime_ns, page.read_text()))
        assert "data-reload" in seen[-1][1]
        if len(seen) == 2:
            make_run(runs, "vae", 0, steps=100, ended=False)
        if len(seen) == 4:
            raise KeyboardInterrupt

    page = make_report([runs], out, watch=True, every=0.5, wait=wait, say=said.append)
    assert "No runs yet" in seen[0][1] and seen[0][0] == seen[1][0], "nothing changed, so nothing is written"
    assert "running" in seen[2][1] and seen[2][0] == seen[3][0]
    assert "data-reload" not in page.read_text() and min(waits) >= 0.5
    assert list((out / "figures").iterdir()), "the files of the figures come at the end"
    assert f"watching {runs}: {page} is written again" in said[0] and "every 0.5 s; Ctrl-C ends it" in said[1]
    assert [line.split(" ", 1)[1] for line in said[2:4]] == [
        "written: no runs yet",
        "written: 1 run, 1 of them running",
    ]
    assert said[4].startswith("ending") and len(said) == 5


def test_the_command_says_that_it_watches_and_prints_the_page_alone(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs", "vae", 0, steps=100, ended=False)
    monkeypatch.setattr("bsvi.report.make.FIGURES", ())
    monkeypatch.setattr("bsvi.report.make.FIRST_FIGURES", ())
    monkeypatch.setattr("bsvi.report.make._state", lambda places: (_ for _ in ()).throw(KeyboardInterrupt))
    assert report_command([str(tmp_path / "runs"), "-o", str(tmp_path / "out"), "--watch"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'out' / 'index.html'}\n" and "Ctrl-C ends it" in printed.err


@pytest.mark.usefixtures("no_figures")
def test_a_page_is_replaced_whole(tmp_path, monkeypatch):
    make_run(tmp_path / "runs", "vae", 0, steps=100)
    page = make_report([tmp_path / "runs"], tmp_path / "out")
    before = page.read_text()
    monkeypatch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        make_report([tmp_path / "runs"], tmp_path / "out")
    assert page.read_text() == before
    assert not list(Path(tmp_path / "out").rglob(".*")), "nothing half written is left"
