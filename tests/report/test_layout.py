"""Nothing is cut: every column of every table and every label of every figure, on desktop, tablet, phone and paper."""

import re

import pytest

# Columns that one has to scroll for, texts wider than their place, and labels that stick out of their figure.
CUT = """() => {
  const cut = [];
  document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  for (const node of document.querySelectorAll(".scroll"))
    if (node.scrollWidth > node.clientWidth) cut.push(["table", node.ariaLabel, node.scrollWidth, node.clientWidth]);
  for (const svg of document.querySelectorAll("svg.figure")) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const b = text.getBoundingClientRect();
      const out = Math.max(box.left - b.left, b.right - box.right, box.top - b.top, b.bottom - box.bottom);
      if (out > 0.004 * box.width + 1) cut.push(["label", text.textContent, out]);
    }
  }
  for (const node of document.querySelectorAll("td, th, thead button, summary, li, p, h1, h2, h3, dt, dd, .tile, .mark"))
    if (node.clientWidth && getComputedStyle(node).display !== "inline" && node.scrollWidth > node.clientWidth + 1)
      cut.push(["text", node.textContent.slice(0, 60), node.scrollWidth, node.clientWidth]);
  if (document.documentElement.scrollWidth > innerWidth) cut.push(["page", document.documentElement.scrollWidth]);
  return cut;
}"""
A4 = 703  # pixels between the margins of 12 mm


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 1024, 390])
def test_no_label_and_no_column_is_cut_on_a_screen(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate(CUT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_label_and_no_column_is_cut_on_paper_which_is_white(opened, scheme):
    page = opened(viewport={"width": A4, "height": 1000}, color_scheme=scheme)
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate(CUT) == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("thead button").first.is_visible(), "tables stay tables"
    for hidden in ("nav", ".files", ".order", "a.save"):
        assert not page.locator(hidden).first.is_visible()


def test_paper_is_a4_and_warnings_are_printed(opened):
    page = opened()
    boxes = re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", page.pdf(prefer_css_page_size=True))
    assert boxes and {(round(float(x)), round(float(y))) for x, y in boxes} == {(595, 842)}
    warnings = "document.querySelector('details.warnings').open"
    page.evaluate("document.querySelector('details.warnings').open = false")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(warnings)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert not page.evaluate(warnings)


def test_names_that_are_too_long_for_a_figure_have_numbers_that_the_page_explains(opened):
    page = opened()
    (explained,) = page.locator(".numbers li").all_inner_texts()
    assert explained.startswith("[1] BSVI-k (net.width = 400, optim.batch = 100, optim.lr = 0.003")
    drawn = " ".join(page.locator("svg.figure").all_text_contents())
    assert "BSVI-k [1]" in drawn and "…" not in drawn


def test_on_a_phone_every_number_has_its_label(opened):
    page = opened(viewport={"width": 390, "height": 900})
    label = "node => getComputedStyle(node, '::before').content"
    cells = page.locator("#omniglot-small-scores-test tbody tr").first.locator("td")
    labels = [cell.evaluate(label) for cell in cells.all()]
    assert labels[:2] == ['"seeds"', '"Log-likelihood"'] and '"the paper: ELBO*"' in labels
