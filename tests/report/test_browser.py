"""The page in a real browser: it sorts, enlarges, fits phone and desktop, follows light and dark, and asks for nothing."""

import contextlib
import re
from xml.etree import ElementTree

import pytest

from bsvi.report import make_report
from tests.report.made_runs import make_runs


def column(page, table, number):
    return page.locator(f"#{table} tbody tr > :nth-child({number})").all_inner_texts()


def test_tables_sort_by_number_and_by_name(opened):
    page = opened()
    table = "omniglot-small-scores-test"
    heading = page.locator(f"#{table} thead tr:last-child th").nth(2)
    heading.get_by_role("button").click()
    values = [float(re.match(r"\S+", text)[0].replace("−", "-")) for text in column(page, table, 3)]
    assert values == sorted(values, reverse=True) and heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("button").press("Enter")  # by keyboard, the other way round
    values = [float(re.match(r"\S+", text)[0].replace("−", "-")) for text in column(page, table, 3)]
    assert values == sorted(values) and heading.get_attribute("aria-sort") == "ascending"
    page.locator(f"#{table} thead tr:last-child th").first.get_by_role("button").click()
    names = column(page, table, 1)
    assert names == sorted(names, key=str.lower) and heading.get_attribute("aria-sort") is None


def test_cells_without_a_number_come_last_in_both_directions(opened):
    page = opened()
    table = "omniglot-small-differences-test"
    heading = page.locator(f"#{table} thead th").nth(1).get_by_role("button")
    for _ in range(2):
        heading.click()
        assert column(page, table, 2)[-1] == "–"


def test_figures_enlarge_and_the_focus_returns(opened):
    page = opened()
    buttons = page.locator("figure button")
    assert buttons.count() >= 7
    second = buttons.nth(1)
    small = second.locator("svg").bounding_box()
    second.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    assert dialog.is_visible() and dialog.locator("svg").bounding_box()["width"] > small["width"]
    first_title = dialog.locator("b").inner_text()
    page.keyboard.press("ArrowRight")
    assert dialog.locator("b").inner_text() != first_title
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert second.evaluate("node => node === document.activeElement")
    second.click()
    dialog.get_by_role("button", name="Close").click()
    assert not dialog.is_visible()


def test_sorting_returns_to_the_papers_order(opened):
    page = opened()
    table = "omniglot-small-scores-test"
    paper = column(page, table, 1)
    heading = page.locator(f"#{table} thead tr:last-child th").nth(2)
    orders = []
    for _ in range(3):
        heading.get_by_role("button").click()
        orders.append((heading.get_attribute("aria-sort"), column(page, table, 1)))
    assert [name for name, _ in orders] == ["descending", "ascending", None]
    assert orders[0][1] != paper and orders[2][1] == paper
    select = page.locator(".table", has=page.locator(f"#{table}")).get_by_label("Order")
    assert not select.is_visible(), "nothing to return from"
    heading.get_by_role("button").click()
    assert select.is_visible() and select.locator("option:checked").inner_text() == "Log-likelihood ↓"
    page.reload()
    assert column(page, table, 1) == orders[0][1], "the order survives a reload"
    select.select_option("as in the paper")
    assert column(page, table, 1) == paper and heading.get_attribute("aria-sort") is None
    page.reload()
    assert column(page, table, 1) == paper


def test_a_narrow_screen_sorts_by_the_list(opened):
    page = opened(viewport={"width": 390, "height": 800})
    table = "omniglot-small-scores-test"
    paper = column(page, table, 1)
    select = page.locator(".table", has=page.locator(f"#{table}")).get_by_label("Order")
    select.select_option("the paper: Log-likelihood ↑")
    assert column(page, table, 1)[0] == "VAE" and column(page, table, 1) != paper
    select.select_option("as in the paper")
    assert column(page, table, 1) == paper


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_is_saved_from_the_page_alone(opened, tmp_path, scheme):
    page = opened(color_scheme=scheme)
    assert page.locator("a:not([href^='#']):not([href^='data:'])").count() == 0, "a link that may lead nowhere"
    for _ in range(2):  # the second time from what the first has made
        with page.expect_download() as saved:
            page.get_by_role("link", name="Save as SVG").first.click()
    saved.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text and "#1b1f24" in text and "#0072b2" in text, "the colours of light"
    assert saved.value.suggested_filename == "omniglot-small-differences.svg"


def test_warnings_are_sentences_with_counts_and_the_vital_one_is_in_the_summary(opened):
    page = opened()
    warnings = page.locator("#omniglot-small-warnings")
    (title,) = warnings.locator("> summary").all_inner_texts()
    kinds = warnings.locator("> ul > li")
    first = kinds.first
    assert title == "8 warnings of 1 kind: read before trusting a number" and kinds.count() == 1
    assert first.inner_text().startswith(
        "8 runs: test: log-likelihood (BSVI-500): Pareto k-hat is above 0.7 for 60 to 67%"
    )
    assert not first.locator("ul").is_visible()
    first.get_by_text("Which").click()
    assert first.locator("ul li").count() == 8 and "vae-seed0" in first.locator("ul").inner_text()
    assert "k-hat is above 0.7 for most test images" in page.locator(".summary").first.inner_text()


@pytest.mark.parametrize(("width", "height"), [(360, 740), (820, 1180), (1440, 900)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(opened, width, height, scheme):
    page = opened(viewport={"width": width, "height": height}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    ratio = page.evaluate(CONTRAST)
    assert min(ratio.values()) >= 4.5, ratio
    assert page.locator("h2").first.is_visible() and page.locator("table:visible").count() >= 5


CONTRAST = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const back = (node) => { for (; node; node = node.parentElement) { const c = rgb(getComputedStyle(node).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = {};
  const texts = ["p", "td", ".lead", "small", "figcaption", "a", ".mark", ".tile span", ".tile b", "thead button", "summary"];
  for (const choice of texts)
    for (const node of document.querySelectorAll(choice)) {
      const [a, b] = [light(rgb(getComputedStyle(node).color)), light(back(node))].sort((x, y) => y - x);
      found[choice] = Math.min(found[choice] ?? 99, (a + .05) / (b + .05));
    }
  return found;
}"""


def test_light_and_dark_differ_in_page_and_figures(opened):
    colours = []
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        colours.append(
            page.evaluate(
                "[getComputedStyle(document.body).backgroundColor,"
                " getComputedStyle(document.querySelector('svg.figure text')).fill]"
            )
        )
    assert colours[0][0] != colours[1][0] and colours[0][1] != colours[1][1]


def test_everything_can_be_reached_by_keyboard(opened):
    page = opened()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert {"A.skip", "BUTTON.", "DIV.scroll", "A."} <= reached


def test_without_scripts_the_numbers_are_all_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#omniglot-small-scores-test tbody tr").count() == 5


def until(page, expression):
    """Waits by asking again and again: the page's policy forbids Playwright's own way."""
    for _ in range(100):
        with contextlib.suppress(Exception):  # asked in the middle of a reload
            if page.evaluate(expression):
                return
        page.wait_for_timeout(100)
    raise AssertionError(expression)


def test_a_watched_page_reloads_by_itself_and_keeps_the_readers_place(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("bsvi.report.make.FIGURES", ())  # they take most of a report's time
    monkeypatch.setattr("bsvi.report.make.FIRST_FIGURES", ())
    make_runs(tmp_path / "runs", ("vae", "svi", "bsvi"), (0, 1), steps=100)
    state = {}

    def wait(seconds):
        page = state.setdefault("page", browser.new_page())
        page.goto((tmp_path / "out" / "index.html").as_uri())
        page.locator("#omniglot-small-runs thead th").nth(1).get_by_role("button").click()
        page.evaluate("window.scrollTo({top: 700, behavior: 'instant'}); window.mark = 1")
        until(page, "window.mark === undefined")  # another document: it has reloaded
        until(page, "Math.abs(window.scrollY - 700) < 3")
        head = "document.querySelectorAll('#omniglot-small-runs thead th')[1]"
        until(page, f"{head}.getAttribute('aria-sort') === 'descending'")
        page.locator("#pause").click()
        page.evaluate("window.mark = 1")
        page.wait_for_timeout(1500)
        state["still"] = page.evaluate("window.mark")
        raise KeyboardInterrupt

    make_report([tmp_path / "runs"], tmp_path / "out", watch=True, every=0.6, wait=wait)
    assert state["still"] == 1
    state["page"].reload()
    assert state["page"].locator("#pause").count() == 0, "the last page stands still"
    state["page"].close()
