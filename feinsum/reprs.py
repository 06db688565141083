"""How values show themselves: in a line, and as a table of a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["brief", "html_table", "inline_svg"]

MOST = 300
"""Characters of a value in one line."""


def brief(value: object, text: str) -> str:
    """The ``repr`` of a value that does not fit a line.

    >>> brief(3, "an integer")
    '<int an integer>'
    """
    line = " ".join(text.split())
    if len(line) > MOST:
        line = f"{line[: MOST - 1]}…"
    return f"<{type(value).__name__} {line}>"


def inline_svg(file: bytes) -> str:
    """A file of SVG as an element of HTML, without what comes ahead of it.

    >>> inline_svg(b"<?xml version='1.0'?><svg></svg>")
    '<svg></svg>'
    """
    text = file.decode()
    return text[text.index("<svg") :]


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of HTML; texts are escaped.

    >>> html_table(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = [("th", headings), *(("td", row) for row in rows)]
    inside = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(str(x))}</{tag}>" for x in cells) + "</tr>"
        for tag, cells in lines
    )
    return f"<table>{inside}</table>"
