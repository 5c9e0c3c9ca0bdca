"""How the site is built: ./run docs. Pages are Markdown; the API page comes from the docstrings."""

import inspect
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import bsvi  # noqa: E402

project, version, release = "bsvi", bsvi.__version__, bsvi.__version__
copyright = "the authors of bsvi, MIT licence"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme, html_title = "furo", "bsvi"
html_show_search_summary = False  # it would fetch the pages found, which a browser forbids from disk
html_copy_source = html_show_sourcelink = False
highlight_language = "none"  # an indented block is a command or a formula
myst_heading_anchors = 3
autodoc_member_order, autodoc_class_signature = "bysource", "mixed"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults, autodoc_inherit_docstrings = True, False
maximum_signature_line_length = 90
napoleon_google_docstring, napoleon_numpy_docstring = True, False

INCLUDED = re.compile(r"```\{include\} (\S+)\n```\n?")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
HOME = re.compile(r"\{home of what (\w+) returns\}")
ENTRY = re.compile(r"(\w+(?:, \w+)*) {2,}(\S.*)")


def prepare(app, docname, source):
    """Put in what the page includes, and send links to what the site has: its own pages, or a copy of the file."""
    text = INCLUDED.sub(lambda found: borrowed(HERE / found[1]), source[0])
    pages = {(HERE / found).resolve(): page for found, page in included().items()}

    def link(found):
        image, words, target, anchor = found.groups()
        path = (HERE / target).resolve()
        if path.is_dir():
            return f"`{words}`"  # a folder has no page
        copied = path.suffix == ".md" and HERE not in path.parents  # a file to look at, such as a table
        if copied and path not in pages:
            return f"{image}[{words}](path:{target})"  # a copy has no places to link to
        return f"{image}[{words}]({pages.get(path, target)}{anchor or ''})"

    text = text.replace("{the table of methods}", methods())
    source[0] = HOME.sub(lambda found: home(found[1]), LINK.sub(link, text))


def borrowed(path):
    """The text of a page outside docs, with its links as seen from docs."""

    def moved(found):
        image, words, target, anchor = found.groups()
        return f"{image}[{words}]({os.path.relpath(path.parent / target, HERE)}{anchor or ''})"

    return LINK.sub(moved, path.read_text())


def included():
    """Pages outside docs that a page of the site includes: {path from docs: page}."""
    return {found[1]: page.name for page in HERE.glob("*.md") if (found := INCLUDED.search(page.read_text()))}


def home(name):
    """Where the class lives that a public function returns."""
    made = inspect.signature(getattr(bsvi, name), eval_str=True).return_annotation
    return f"{made.__module__}.{made.__qualname__}"


def methods():
    """The rows of bsvi.METHODS, with what an update costs at the paper's k = 9."""
    rows = []
    for name, row in bsvi.METHODS.items():
        cells = (f"`{name}`", row.label, "yes" if row.paper else "beyond it", row.use_when)
        rows.append(f"| {' | '.join(cells)} | {bsvi.objective(name, k=9).decoder_calls} |")
    return "\n".join(
        ["| name | label | in the paper | use when | decoder passes per update |", "|---|---|---|---|---|", *rows]
    )


def readable(app, what, name, obj, options, lines):
    """Docstrings list their parameters in columns, and write lambda_ and KL(q || p): make that reStructuredText."""
    made, inside = [], False
    for line in lines:
        if entry := ENTRY.fullmatch(line):
            made += [*([] if inside else [""]), f"``{entry[1]}``", f"    {plain(entry[2])}"]
            inside = True
        elif inside and line.startswith(" "):
            made.append(f"    {plain(line.strip())}")
        else:
            made += [*([""] if inside and line else []), line if line.startswith((">>>", "...")) else plain(line)]
            inside = False
    lines[:] = made


def plain(line):
    """The line with what only looks like markup escaped, outside of ``code``."""
    parts = re.split(r"(``.*?``)", line)
    return "".join(p if p.startswith("``") else re.sub(r"(?<=\w)_(?!\w)|\||\*(?=\w*\*)", r"\\\g<0>", p) for p in parts)


def open_files(app, pagename, templatename, context, doctree):
    """A link to a file opens it, in place of saving it."""
    if "body" in context:
        context["body"] = context["body"].replace(' download=""', "")


def setup(app):
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", readable, priority=100)  # before napoleon
    app.connect("html-page-context", open_files)
