"""How a table is written: Markdown, LaTeX (booktabs), CSV, and HTML that sorts."""

import csv
import html
import io
import re

from bsvi.report.cells import MISSING, Cell, Column, ReportTable


def to_markdown(table: ReportTable) -> str:
    """The table as GitHub-flavoured Markdown."""
    rules = ["---:" if column.numeric else ":---" for column in table.columns]
    lines = [_pipes([_pipe(_full(column)) for column in table.columns]), _pipes(rules)]
    for row in table.rows:
        lines.append(_pipes([_strong(cell) + (f" ({_pipe(cell.detail)})" if cell.detail else "") for cell in row]))
    notes = [f"- {_pipe(note)}" for note in table.notes]
    return "\n".join([f"**{_pipe(table.title)}.** {_pipe(table.caption)}", "", *lines, "", *notes]).rstrip() + "\n"


def to_csv(table: ReportTable) -> str:
    """The table with full precision: one column per number ('Log-likelihood', 'Log-likelihood sd')."""
    suffixes = []
    for i, column in enumerate(table.columns):
        found: dict[str, None] = {}
        for row in table.rows:
            found.update(dict.fromkeys(row[i].numbers))
        suffixes.append(list(found) if column.numeric and found else None)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [_full(column) for column in table.columns]
    writer.writerow([f"{name} {s}".strip() for name, own in zip(names, suffixes, strict=True) for s in own or [""]])
    for row in table.rows:
        fields: list[str] = []
        for cell, own in zip(row, suffixes, strict=True):
            shown = "" if cell.text == MISSING else cell.text
            fields += [repr(cell.numbers[s]) if s in cell.numbers else "" for s in own] if own else [shown]
        writer.writerow(fields)
    return out.getvalue()


def to_latex(table: ReportTable) -> str:
    """The table for a paper: needs \\usepackage{booktabs}."""
    head = " & ".join(f"\\textbf{{{_tex(column.name)}}}" for column in table.columns)
    groups = _groups(table.columns)
    lines = ["\\begin{table}[t]", "\\centering", "\\small", f"\\caption{{{_tex(f'{table.title}. {table.caption}')}}}"]
    lines += [
        f"\\label{{table:{table.name}}}",
        f"\\begin{{tabular}}{{{''.join('r' if c.numeric else 'l' for c in table.columns)}}}",
    ]
    lines += ["\\toprule"]
    if any(name for name, _ in groups):
        at, rules = 1, []
        for name, width in groups:
            if name:
                rules.append(f"\\cmidrule(lr){{{at}-{at + width - 1}}}")
            at += width
        lines += [
            " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{_tex(name)}}}" for name, width in groups) + " \\\\",
            "".join(rules),
        ]
    lines += [f"{head} \\\\", "\\midrule"]
    for row in table.rows:
        cells = [f"\\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text) for cell in row]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"\\par\\footnotesize {_tex(note)}" for note in table.notes)]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def to_html(table: ReportTable) -> str:
    """The table for the page: headings are buttons that sort, cells carry the number they sort by."""
    groups = _groups(table.columns)
    head = ""
    if any(name for name, _ in groups):
        edge = ' class="edge"'
        cells = "".join(
            f'<th colspan="{width}" scope="colgroup"{edge if name else ""}>{html.escape(name)}</th>'
            for name, width in groups
        )
        head += f'<tr class="groups">{cells}</tr>'
    edges = [bool(c.group) and (not i or table.columns[i - 1].group != c.group) for i, c in enumerate(table.columns)]
    labels = _labels(table.columns)
    names = "".join(
        f'<th scope="col"{_class(column, edge)} data-label="{label}"><button type="button">{_heading(column.name)}</button></th>'
        for column, edge, label in zip(table.columns, edges, labels, strict=True)
    )
    rows = (map(_html_cell, row, table.columns, range(len(row)), edges, labels) for row in table.rows)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in table.notes)
    label = html.escape(table.title, quote=True)
    least, whole = _ems(table)
    return (
        f'<div class="table"><p class="caption"><b>{html.escape(table.title)}.</b> {_names(table.caption)}</p>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f'<table class="sortable {table.kind}" id="{table.name}" aria-label="{label}" '
        f'style="--least:{least:.1f};--whole:{whole:.1f}">'
        f"<thead>{head}<tr>{names}</tr></thead><tbody>{body}</tbody></table></div></div>{notes}"
    )


def _html_cell(cell: Cell, column: Column, position: int, edge: bool, label: str) -> str:
    tag = "th" if position == 0 else "td"
    value = cell.numbers.get("")
    attributes = (' scope="row"' if position == 0 else "") + _class(column, edge)
    attributes += f' data-label="{label}"' if position else ""
    attributes += f' data-value="{value!r}"' if column.numeric and value is not None else ""
    text = _names(re.sub(_JOINED, "\u00a0", cell.text) if column.numeric else cell.text)
    text = f'<span class="whole">{text}</span>' if not position and len(cell.text) <= _WHOLE else text
    text = f'<span class="mark {cell.mark.replace(" ", "-")}">{text}</span>' if cell.mark else text
    text = f"<b>{text}</b>" if cell.bold else text
    return f"<{tag}{attributes}>{text}{f'<small>{_names(cell.detail)}</small>' if cell.detail else ''}</{tag}>"


_JOINED = r" (?![±\[])"  # a number's spaces that are no place for a new line
_WHOLE = 16  # letters: a name of a row that is shorter stays on one line
_HYPHENS = {"Reconstruction": "Recon\u00adstruction", "likelihood": "likeli\u00adhood"}  # places for a new line


def _heading(name: str) -> str:
    for word, parts in _HYPHENS.items():
        name = name.replace(word, parts)
    return _names(name)


def _labels(columns: list[Column]) -> list[str]:
    """What stands before the cells on a narrow screen, where a row is a card: the group too, but for the first group."""
    first = next((column.group for column in columns if column.group), "")
    names = [column.name if column.group == first else _full(column) for column in columns]
    return [html.escape(name, quote=True) for name in names]


def _ems(table: ReportTable) -> tuple[float, float]:
    """The width of the table in widths of the letter m, with numbers broken into two lines and with whole ones.

    The page makes letters smaller where there is less room.
    """
    least = whole = 1.5  # the edges
    for i, column in enumerate(table.columns):
        texts = [row[i].text for row in table.rows]
        heads = re.split(r"[\s\u00ad-]", re.sub("<.*?>", "", _heading(column.name)))
        if column.numeric:
            words = [part for text in texts for part in re.split(r" (?=[±\[])", text)]
        elif i == 0:
            words = [part[:_WHOLE] for text in texts for part in ([text] if len(text) <= _WHOLE else text.split())]
            texts = words
        else:
            words = texts = [part[:_WHOLE] for text in texts for part in re.split(r"[\s/]", text)]
        head = 0.72 * max(map(len, heads))
        least += 0.9 + max(0.71 * max(map(len, words), default=0), head)
        whole += 0.9 + max(0.71 * max(map(len, texts), default=0), head)
    return least, whole


def _class(column: Column, edge: bool) -> str:
    names = ["number"] * column.numeric + ["edge"] * edge
    return f' class="{" ".join(names)}"' if names else ""


def _names(text: str) -> str:
    """Escaped, with the paper's k in italics."""
    return re.sub(r"(?<![\w])k(′?)(?![\w])", r"<i>k</i>\1", html.escape(text))


def _full(column: Column) -> str:
    return f"{column.group}: {column.name}" if column.group else column.name


def _groups(columns: list[Column]) -> list[tuple[str, int]]:
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return groups


def _strong(cell: Cell) -> str:
    return f"**{_pipe(cell.text)}**" if cell.bold else _pipe(cell.text)


def _pipe(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def _pipes(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_TEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "–": "--", "−": "$-$"}
_TEX |= {"±": "$\\pm$", "π": "$\\pi$", "′": "$'$", "×": "$\\times$", "β": "$\\beta$", "·": "$\\cdot$", "≥": "$\\ge$"}
_TEX |= {symbol: f"\\{symbol}" for symbol in "&%$#_{}"}


def _tex(text: str) -> str:
    text = re.sub(r"(?<![\w])k(?![\w])", "\0", " ".join(text.split()))  # the paper's k, in italics
    return "".join(_TEX.get(letter, letter) for letter in text).replace("\0$'$", "$k'$").replace("\0", "$k$")
