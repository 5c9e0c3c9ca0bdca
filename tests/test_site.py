"""The documentation builds without a warning, its links lead somewhere, and it works in a browser without a network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import bsvi
from bsvi.tables.plugins import TABLES

ROOT = Path(bsvi.__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning fails."""
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install -c constraints.txt '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = ["-b", "html", "-E", "-W", "--keep-going", "-q", "-d"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *command, str(folder / "made"), str(ROOT / "docs"), str(folder / "html")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Links(HTMLParser):
    """What a page links to, loads, and names."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.names = [], [], {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found[name] for name in ("id", "name") if found.get(name)}
        if found.get("href") and tag == "a":
            self.links.append(found["href"])
        self.loads += [found[name] for name in ("src", "href") if found.get(name) and tag in ("script", "link", "img")]


def test_every_link_leads_to_a_page_and_a_heading_that_exist(site):
    pages = {path: Links(path) for path in site.rglob("*.html") if "_downloads" not in path.parts}
    assert len(pages) > 15
    for path, page in pages.items():
        for target in page.links + page.loads:
            link = urlsplit(target)
            if link.scheme:
                assert target in page.links and link.scheme in ("https", "http"), f"{path.name} loads {target}"
                continue
            aim = (path.parent / unquote(link.path)).resolve() if link.path else path
            assert aim.exists(), f"{path.name} links to {target}"
            if link.fragment and aim in pages:
                assert unquote(link.fragment) in pages[aim].names, f"{path.name} links to {target}"


def test_every_page_can_be_reached_from_the_first(site):
    seen, waiting = set(), [site / "index.html"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".html" and "_downloads" not in page.parts:
            seen.add(page)
            waiting += [(page.parent / urlsplit(t).path).resolve() for t in Links(page).links if not urlsplit(t).scheme]
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {page.stem for page in seen}


def test_every_public_name_is_in_the_reference(site):
    names = Links(site / "api.html").names
    assert {f"bsvi.{name}" for name in bsvi.__all__} <= names
    assert {f"bsvi.adapters.{name}" for name in bsvi.adapters.__all__ if name not in bsvi.__all__} <= names
    rows = {type(row) for table in TABLES for row in table.values()} - {int, bsvi.Method}
    assert {f"{row.__module__}.{row.__name__}" for row in rows} <= names


def test_it_opens_from_disk_is_searched_and_turns_dark(site, browser):
    context = browser.new_context(color_scheme="light", offline=True)
    page, complaints, requests = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").fill("amortization_gap")
    page.get_by_placeholder("Search").press("Enter")
    found = page.locator("#search-results li a")
    found.first.wait_for()
    assert any("api.html" in (link.get_attribute("href") or "") for link in found.all())
    page.goto((site / "api.html").as_uri())
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) != light
    context.close()
    assert complaints == []
    assert [url for url in requests if not re.match("file:|data:", url)] == []
