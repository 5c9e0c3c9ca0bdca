"""The one page: a single file without any request to elsewhere, for phone and desktop, light and dark, and the keyboard."""

import base64
import hashlib
import html
import time
from dataclasses import dataclass
from importlib import resources
from urllib.parse import quote

from bsvi.report import paper, render
from bsvi.report.cells import ReportTable, format_number
from bsvi.report.claims import CONTRADICTED, HOLDS, NOT_SHOWN, ClaimResult
from bsvi.report.experiments import ExperimentRuns
from bsvi.report.progress import Progress
from bsvi.report.records import ReportWarning
from bsvi.report.settings import read_settings
from bsvi.report.style import ReportFigure, make_palette, to_svg
from bsvi.report.tables import make_slug
from bsvi.report.warned import list_warnings
from bsvi.report.words import count_verdicts, find_best_row


@dataclass(frozen=True)
class Section:
    """One experiment, ready to be shown, its tables in reading order."""

    experiment: ExperimentRuns
    lines: list[ClaimResult]
    sentences: list[str]
    claims: list[ReportTable]
    scores: list[ReportTable]
    about_runs: list[ReportTable]
    first: list[ReportFigure]  # before the tables
    figures: list[ReportFigure]
    warnings: list[ReportWarning]


def to_page(
    sections: list[Section],
    papers: list[ReportTable],
    warnings: list[ReportWarning],
    reload: float = 0.0,
    progress: Progress | None = None,
) -> str:
    """The whole page as HTML; `reload` is the number of seconds after which it loads itself again (0: never)."""
    style = (
        _asset("page.css").replace("/*palette*/", make_palette()).replace("/*dark palette*/", make_palette(dark=True))
    )
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    runs = sum(len(section.experiment.runs) for section in sections)
    names = ", ".join(section.experiment.name for section in sections)
    links = [(make_slug(s.experiment.name), s.experiment.name) for s in sections] + [
        ("the-paper", "The paper"),
        ("notes", "Notes"),
    ]
    nav = "".join(f'<li><a href="#{anchor}">{html.escape(name)}</a></li>' for anchor, name in links)
    body = "".join(map(_section, sections)) or "<p class=lead>No runs yet: this page fills as they start.</p>"
    made = time.strftime("%Y-%m-%d %H:%M")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="bsvi report">
<title>BSVI report{f": {html.escape(names)}" if names else ""}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
{f'<noscript><meta http-equiv="refresh" content="{reload:g}"></noscript>' if reload else ""}
</head>
<body{f' data-reload="{reload:g}"' if reload else ""}>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>Buffered Stochastic Variational Inference, measured</h1>
<p class="lead">{len(sections)} experiment{"s" * (len(sections) != 1)}, {runs} run{"s" * (runs != 1)}, beside the numbers of
Shu, Bui, Whang and Ermon (AISTATS 2019). Made {made} by <code>bsvi report</code>.</p>
{_live(reload, progress) if reload else ""}
</header>
<nav aria-label="Contents"><ul>{nav}</ul></nav>
<main id="main">
{list_warnings("page", warnings)}
{body}
{_papers(papers)}
{_NOTES}
</main>
<footer>Everything on this page is in this file. <code>bsvi report</code> also writes the tables (Markdown, LaTeX, CSV)
and figures (PNG, PDF) as files.</footer>
<dialog id="zoom" aria-labelledby="zoom-title"><div class="bar"><b id="zoom-title"></b>
<button type="button" class="previous" aria-label="Previous figure">←</button>
<button type="button" class="next" aria-label="Next figure">→</button>
<button type="button" class="close" aria-label="Close">✕</button></div><div class="content"></div><p></p></dialog>
<script>{script}</script>
</body>
</html>
"""


def _live(reload: float, progress: Progress | None) -> str:
    """That the page is still being written, how far the runs are, and a button to stop it from moving."""
    far = ""
    if progress is not None:
        bar = f'<progress max="{progress.runs}" value="{progress.done}" aria-label="Runs that are done"></progress>'
        far = f"<b>{progress.describe()}.</b> {bar} "
    return (
        f'<p class="live"><span>{far}This page loads itself again every {reload:g} s while <code>bsvi report --watch</code> '
        'runs.</span><button type="button" id="pause">Pause</button></p>'
    )


_NOTES = f"""<section id="notes"><h2>Notes</h2>
<p><b>Scores.</b> Log-likelihood is estimated by BSVI with many steps and uniform weights, a lower bound in expectation;
ELBO* is the bound of the last proposal, KL* and Reconstruction* its parts. {html.escape(paper.SIGNS)}</p>
<p><b>Intervals.</b> Methods are compared in pairs, on the same examples and seed by seed. Seeds and examples are crossed
random effects, and the 95% intervals allow for both: another seed and other examples could have come out differently.
With few seeds they are wide, and with fewer than three nothing counts as shown.</p>
<p><b>Verdicts.</b> A claim holds if its whole interval agrees, is contradicted if its whole interval disagrees, and else
is not shown. For “close” and “at least” differences within the margin do not matter: 0.3% of the log-likelihood, about
the largest difference that the paper calls not appreciable; 0.03% for two estimates of the same model; 10% for
time.</p></section>"""


def _section(section: Section) -> str:
    experiment, anchor = section.experiment, make_slug(section.experiment.name)
    sentences = "".join(f"<p>{_code(sentence)}</p>" for sentence in section.sentences)
    figures = "".join(map(_figure, section.figures))
    pictures = "".join(map(_figure, section.first))
    first, rest = section.scores[:1], section.scores[1:]
    parts = [
        f'<section id="{anchor}"><h2>{html.escape(experiment.name)}</h2>{_tiles(section)}',
        f'<div class="summary">{sentences}</div>{_numbers(experiment)}',
        f'<div class="figures">{pictures}</div>' if pictures else "",
        list_warnings(anchor, section.warnings),
        f"<h3>Scores</h3>{_tables(first)}" if first else "",
        f"<h3>Does the paper hold?</h3>{_tables(section.claims[:1])}" if section.lines else "",
        f"<h3>Beyond the paper</h3>{_tables(section.claims[bool(section.lines) :])}"
        if section.claims[bool(section.lines) :]
        else "",
        f'<h3>Figures</h3><div class="figures">{figures}</div>' if figures else "",
        f"<h3>More scores</h3>{_tables(rest)}" if rest else "",
        f"<h3>Runs and cost</h3>{_tables(section.about_runs)}{_settings(experiment)}</section>",
    ]
    return "".join(parts)


def _tiles(section: Section) -> str:
    found, best = count_verdicts(section.lines), find_best_row(section.experiment)
    tiles = []
    if best is not None:
        means = best.means("test", "log_likelihood")
        alone = sum(row.select_scored("test") != [] for row in section.experiment.rows) == 1
        tiles.append(
            ("", format_number(sum(means) / len(means)), f"{'' if alone else 'best '}test log-likelihood: {best.label}")
        )
    if section.lines:
        tiles += [
            (HOLDS, str(found[HOLDS]), "of the paper’s claims hold"),
            (NOT_SHOWN, str(found[NOT_SHOWN]), "not shown"),
        ]
        tiles.append((CONTRADICTED if found[CONTRADICTED] else "", str(found[CONTRADICTED]), "contradicted"))
    done = sum(run.result is not None for run in section.experiment.runs)
    tiles.append(("", f"{done}/{len(section.experiment.runs)}", "runs ended"))
    cells = "".join(
        f'<div class="tile {kind.replace(" ", "-")}"><b>{value}</b><span>{html.escape(name)}</span></div>'
        for kind, value, name in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _tables(tables: list[ReportTable]) -> str:
    return "".join(map(_table, tables))


def _table(table: ReportTable) -> str:
    kinds = [("Markdown", "md", render.to_markdown), ("LaTeX", "tex", render.to_latex), ("CSV", "csv", render.to_csv)]
    texts = [(name, suffix, quote(write(table), errors="replace")) for name, suffix, write in kinds]
    links = ", ".join(
        f'<a download="{table.name}.{suffix}" href="data:text/plain;charset=utf-8,{text}">{name}</a>'
        for name, suffix, text in texts
    )
    return f'{render.to_html(table)}<p class="files">This table as {links}</p>'


def _numbers(experiment: ExperimentRuns) -> str:
    """What the numbers in the figures stand for, where names are too long for them."""
    items = "".join(f"<li>[{row.number}] {html.escape(row.label)}</li>" for row in experiment.rows if row.number)
    return f'<p class="note">In the figures these have numbers:</p><ul class="numbers">{items}</ul>' if items else ""


def _figure(drawn: ReportFigure) -> str:
    """A figure that enlarges, and can be saved from the page, which may be sent or published without files beside it."""
    title, caption, alt = (html.escape(text, quote=True) for text in (drawn.title, drawn.caption, drawn.alt))
    return (
        f'<figure data-name="{drawn.name}"><button type="button" aria-label="Enlarge: {title}. {alt}">'
        f"{to_svg(drawn.figure, drawn.name)}</button>"
        f'<figcaption><b>{title}.</b> <span class="caption">{caption}</span></figcaption></figure>'
    )


def _settings(experiment: ExperimentRuns) -> str:
    parts = []
    shared = next((row for row in experiment.rows if not row.variant), None)
    for row in experiment.rows:
        if row.runs and (row.variant or row is shared):
            run = row.runs[0]
            about = {} if row.variant else {f"data.{key}": value for key, value in run.part("data").items()}
            about |= {f"version of {key}": value for key, value in run.part("versions").items()}
            about |= {
                key: run.config.get(key) for key in ("git", "device", "threads") if run.config.get(key) is not None
            }
            rows = "".join(
                f"<div><dt>{html.escape(str(key))}</dt><dd>{html.escape(str(value))}</dd></div>"
                for key, value in (read_settings(run) | about).items()
            )
            name = f"Settings of {row.label}" if row.variant else "Settings that the runs share"
            anchor = f"{make_slug(experiment.name)}-settings" + (f"-{make_slug(row.label)}" if row.variant else "")
            parts.append(
                f'<details id="{anchor}"><summary>{html.escape(name)}</summary><dl class="settings">{rows}</dl></details>'
            )
    return "".join(parts)


def _papers(tables: list[ReportTable]) -> str:
    return (
        '<section id="the-paper"><h2>The paper’s own tables</h2><p>As printed, with notes where something is wrong in print.</p>'
        f'<details id="papers-tables"><summary>Show {len(tables)} tables</summary>{_tables(tables)}</details></section>'
    )


def _code(sentence: str) -> str:
    words = html.escape(sentence).split("`")
    return "".join(f"<code>{word}</code>" if i % 2 else word for i, word in enumerate(words))


def _asset(name: str) -> str:
    return resources.files("bsvi.report").joinpath(name).read_text(encoding="utf-8")
