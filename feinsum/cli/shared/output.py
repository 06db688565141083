"""Printing: JSON documents, tables, and files that commands write."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

ID_LENGTH = 12
"""Digits of a content id that are shown; enough to distinguish ids."""

UNLIMITED = 100_000
"""More columns than any line has."""

MIN_PLAIN, MAX_PLAIN = 1e-20, 1e20
"""Between these, numbers are written without an exponent."""


def print_document(
    document: object, as_json: bool, print_text: Callable[[], None]
) -> None:
    """Print the result of a command: as JSON, or as text for people."""
    if as_json:
        print_json(document)
    else:
        print_text()


def print_fields(fields: Mapping[str, object], missing: str = "") -> None:
    """Print a line for each field, such as ``records: 12``.

    Args:
        fields: values by name, in the order of the lines.
        missing: the text of a field that is None.
    """
    for name, value in fields.items():
        label = name.removeprefix("n_").replace("_", " ")
        typer.echo(f"{label}: {missing if value is None else value}")


def print_json(document: object, *, is_line: bool = False) -> None:
    """Print a JSON document; on one line if documents follow each other."""
    indent = None if is_line else 2
    # nan is no JSON: a number that can be infinite is null in the document
    text = json.dumps(
        document,
        indent=indent,
        allow_nan=False,
        ensure_ascii=False,
        default=_convert_value,
    )
    typer.echo(text)


def _convert_value(value: Any) -> Any:
    """Convert a value that JSON lacks."""
    if isinstance(value, datetime):
        return value.isoformat()
    return asdict(value)


def to_digits(value: float, n_digits: int = 4) -> str:
    """Format a number with that many significant digits, without an exponent.

    >>> to_digits(0.000123456), to_digits(9.9999, 3), to_digits(123456.7)
    ('0.0001235', '10.0', '123457')

    A time beyond all measurements has an exponent:

    >>> to_digits(float("inf")), to_digits(2.5e300), to_digits(1e-300)
    ('inf', '2.5e+300', '1e-300')
    """
    if value and not MIN_PLAIN < abs(value) < MAX_PLAIN:
        return f"{value:.{n_digits}g}"
    exponent = int(f"{value:.{n_digits - 1}e}".partition("e")[2])
    return f"{value:.{max(0, n_digits - 1 - exponent)}f}"


def print_table(
    texts: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    last: str | None = None,
) -> None:
    """Print a table; in a file or a pipe, without COLUMNS, a row is one line.

    Args:
        texts: headings of the first columns, which a terminal wraps between words.
        numbers: headings of the next columns, which are never wrapped.
        rows: the cells of each row.
        last: heading of a last column of texts to be copied, such as recipes. With
            one, every row is one line, however narrow the terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style=""
    )
    # rich cuts lines at the width of the terminal, which is wrong in a pipe
    screen, wide = Console(highlight=False), Console(highlight=False, width=UNLIMITED)
    has_width = screen.is_terminal or bool(os.environ.get("COLUMNS"))
    is_wrapped = has_width and last is None
    # texts wrap between words, numbers never
    for heading in texts:
        table.add_column(heading, no_wrap=not is_wrapped)
    for k, heading in enumerate(numbers, len(texts)):
        width = max(map(len, [heading, *(row[k] for row in rows)]))
        table.add_column(heading, min_width=width, no_wrap=True, justify="right")
    if last is not None:
        table.add_column(last, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    if is_wrapped:  # the narrowest column that breaks no word
        wide.width = max(screen.width, wide.measure(table).minimum)
    with wide.capture() as printed:
        wide.print(table)
    typer.echo(_trim_table(printed.get(), screen.width))


def _trim_table(text: str, width: int) -> str:
    """Strip spaces at the ends of lines, and cut rules to the width of the screen."""
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(x[:width] if set(x) == {" ", "─"} else x for x in lines)


def check_output_file(path: Path, suffixes: Sequence[str], option: str) -> None:
    """Refuse a file that cannot be written, before work is done for it.

    Raises:
        typer.BadParameter: naming the option.
    """
    if path.suffix.lower() not in suffixes:
        problem = f"must end in {'one of ' * (len(suffixes) > 1)}{', '.join(suffixes)}"
    elif not path.parent.is_dir():
        problem = f"cannot be written: there is no folder {str(path.parent)!r}"
    else:
        return
    raise typer.BadParameter(f"{str(path)!r} {problem}", param_hint=option)


@contextmanager
def check_reading(path: Path, option: str | None = None) -> Iterator[None]:
    """Name the file, and its option, if the body cannot read it."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(
            f"cannot read {path}: {reason}", param_hint=option
        ) from None


@contextmanager
def check_writing(path: Path, option: str) -> Iterator[None]:
    """Name the option of a file if the body cannot write it."""
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(
            f"{str(path)!r} cannot be written: {error.strerror}", param_hint=option
        ) from None
