"""The HTML around words and figures: one file that opens offline, without a script."""

from collections.abc import Sequence
from html import escape

from server_app.report.figure import Figure, Table
from server_app.report.style import STYLE

# No script, no request to anywhere: whatever a hostile site's words contain, a browser does nothing with it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def section(title: str, figures: Sequence[Figure | None], more: str = "", first: str = "") -> str:
    """A heading with its figures, `first` before them; nothing at all where there is nothing to show."""
    drawn = first + "".join(_figure(one) for one in figures if one is not None)
    if not drawn and not more:
        return ""
    grid = f'<div class="figures">{drawn}</div>' if drawn else ""
    return f"<section><h2>{escape(title)}</h2>{more}{grid}</section>\n"


def table(content: Table, style: str = "") -> str:
    """Cells that begin with a digit are set as numbers."""
    kinds = [
        "n" if all(row[i][:1].isdigit() or row[i] in ("–", "") for row in content.rows) else ""
        for i in range(len(content.header))
    ]

    def line(cells: Sequence[str], tag: str) -> str:
        parts = zip(cells, kinds, strict=True)
        return "".join(
            f"<{tag}{f' class={kind}' if kind else ''}>{escape(cell).replace('± ', '±&nbsp;')}</{tag}>"
            for cell, kind in parts
        )

    head = f"<thead><tr>{line(content.header, 'th')}</tr></thead>"
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in content.rows)
    return f'<div class="scroll"><table class="{style}">{head}<tbody>{body}</tbody></table></div>'


def details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Style, figure, what it is."""
    items = "".join(
        f'<li><b class="{style}">{escape(figure)}</b><span>{escape(words)}</span></li>'
        for style, figure, words in entries
    )
    return f'<ul class="tiles">{items}</ul>'


def _figure(one: Figure) -> str:
    legend = "".join(f"<li>{_mark(style)}{escape(words)}</li>" for style, words in one.legend)
    legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    numbers = details("Numbers", table(one.table)) if one.table else ""
    return (
        f'<figure id="{escape(one.key)}"><h3>{escape(one.title)}</h3>{legend}{one.svg}'
        f"<figcaption>{escape(one.caption)}</figcaption>{numbers}</figure>"
    )


def _mark(style: str) -> str:
    """The legend's sample of a line, a dot or a colour."""
    kind = style.split()[0]
    shape = {
        "line": f'<path d="M1 6H21" class="{style}"/>',
        "dot": f'<circle cx="11" cy="6" r="4.5" class="{style}"/>',
    }.get(kind, f'<rect x="5" y="0" width="12" height="12" rx="2" class="{style}"/>')
    return f'<svg viewBox="0 0 22 12" aria-hidden="true">{shape}</svg>'
