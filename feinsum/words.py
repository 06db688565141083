"""Format numbers, nouns and values for messages and notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_VOWELS = "aeiou"

_PLURALS = {"axis": "axes", "entry": "entries", "index": "indices",
            "process": "processes", "set of sizes": "sets of sizes",
            "vertex": "vertices"}  # fmt: skip


def format_count(number: int, noun: str, style: str = "") -> str:
    """Format a number with its noun; the style is a format such as ``","``.

    >>> format_count(1, "row"), format_count(2_000, "row"), format_count(0, "axis")
    ('1 row', '2000 rows', '0 axes')
    >>> format_count(2_000, "row", ",")
    '2,000 rows'
    """
    return f"{number:{style}} {noun if number == 1 else _PLURALS.get(noun, f'{noun}s')}"


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Format sizes with their names.

    >>> format_sizes({"n0": 400, "n1": 9})
    'n0=400, n1=9'
    """
    return ", ".join(f"{name}={n}" for name, n in sizes.items())


def with_article(noun: str) -> str:
    """Return a noun after "a" or "an".

    >>> with_article("list"), with_article("int"), with_article("ndarray")
    ('a list', 'an int', 'an ndarray')
    """
    starts_with_vowel = noun[:1].lower() in _VOWELS or noun.startswith("nd")
    return f"{'an' if starts_with_vowel else 'a'} {noun}"


def describe_type(value: object) -> str:
    """Return the type of a value, with its article.

    >>> describe_type(3), describe_type([])
    ('an int', 'a list')
    """
    return with_article(type(value).__name__)


def get_reason(error: Exception) -> str:
    """Return the message of an error; of a syntax error without file and line.

    >>> try:
    ...     compile("a +", "<unknown>", "eval")
    ... except SyntaxError as error:
    ...     print(get_reason(error))
    invalid syntax
    """
    return error.msg if isinstance(error, SyntaxError) else str(error)


def get_first_lines(cause: object, n_lines: int = 12, width: int = 200) -> str:
    """Return the first lines of a text that are not empty, each cut at ``width``.

    >>> get_first_lines("one" + chr(10) + chr(10) + "two", n_lines=1)
    'one ...'
    """
    lines = [line.rstrip()[:width] for line in str(cause).splitlines() if line.strip()]
    shown = "\n".join(lines[:n_lines])
    return f"{shown} ..." if len(lines) > n_lines else shown


MAX_CHARACTERS = 300
"""Characters of a value in one line."""


def format_brief(value: object, text: str) -> str:
    """Format a ``repr`` in one line for a value of any size.

    >>> format_brief(3, "an integer")
    '<int an integer>'
    """
    line = " ".join(text.split())
    if len(line) > MAX_CHARACTERS:
        line = f"{line[: MAX_CHARACTERS - 1]}…"
    return f"<{type(value).__name__} {line}>"


def make_inline_svg(file: bytes) -> str:
    """Return the element of an SVG file for HTML, without its prolog.

    >>> make_inline_svg(b"<?xml version='1.0'?><svg></svg>")
    '<svg></svg>'
    """
    text = file.decode()
    return text[text.index("<svg") :]


def format_html_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of HTML; texts are escaped.

    >>> format_html_table(["a"], [["<b>"]])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    lines = [("th", headings), *(("td", row) for row in rows)]
    inside = "".join(
        "<tr>" + "".join(f"<{tag}>{escape(str(x))}</{tag}>" for x in cells) + "</tr>"
        for tag, cells in lines
    )
    return f"<table>{inside}</table>"
