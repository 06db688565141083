"""Printing: JSON documents and tables."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from feinsum.cli.shared.fractions import Fractions
    from feinsum.records import TuningRecord

ID_LENGTH = 12
"""How much of a content id is shown; enough to tell ids apart."""

UNLIMITED = 100_000
"""More columns than any line has."""

LEAST, MOST = 1e-20, 1e20
"""Between these, numbers are written without an exponent."""


def print_json(document: object, *, is_line: bool = False) -> None:
    """A JSON document on stdout; on one line if documents follow each other."""
    indent = None if is_line else 2
    text = json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False)
    typer.echo(text)


def to_digits(value: float, n_digits: int = 4) -> str:
    """A number with that many significant digits, without an exponent.

    >>> to_digits(0.000123456), to_digits(9.9999, 3), to_digits(123456.7)
    ('0.0001235', '10.0', '123457')

    What nobody measures is short all the same:

    >>> to_digits(math.inf), to_digits(2.5e300), to_digits(1e-300)
    ('inf', '2.5e+300', '1e-300')
    """
    if value and not LEAST < abs(value) < MOST:
        return f"{value:.{n_digits}g}"
    exponent = int(f"{value:.{n_digits - 1}e}".partition("e")[2])
    return f"{value:.{max(0, n_digits - 1 - exponent)}f}"


def time_text(record: TuningRecord) -> str:
    """The median in milliseconds and, in brackets, the interquartile range."""
    measured = record.measurement
    spread = to_digits(measured.spread_s * 1e3, 2) if measured.spread_s else "0"
    return f"{to_digits(measured.median_s * 1e3)} ({spread})"


def speedup_text(record: TuningRecord) -> str:
    """The speed-up and, in brackets, its interval."""
    measured = record.measurement
    low, high = (to_digits(x, 3) for x in measured.speedup_interval)
    return f"{to_digits(measured.speedup, 3)} ({low}-{high})"


def record_document(record: TuningRecord, fractions: Fractions) -> dict[str, Any]:
    """A record in short, for JSON; null for what is not known, or infinite."""
    measured = record.measurement
    return {
        "id": record.id,
        "spec": str(record.spec),
        "workload_text": record.workload_text,
        "median_s": measured.median_s,
        "spread_s": _finite(measured.spread_s),
        "speedup": _finite(measured.speedup),
        "speedup_interval": list(map(_finite, measured.speedup_interval)),
        "giga_operations_per_s": _finite(measured.giga_operations_per_s),
        "fraction_of_roofline": fractions.get(record.id),
        "sizes": dict(measured.sizes),
        "device": str(record.environment.device),
        "driver_version": record.environment.driver_version,
        "recorded_at": record.recorded_at,
    }


def _finite(value: float) -> float | None:
    """A number that JSON can hold; of odd facts some are none."""
    return value if math.isfinite(value) else None


def print_records(records: Iterable[TuningRecord], fractions: Fractions) -> None:
    """A table of records, in the order given; a column of rooflines if one is known."""
    print_table(
        (),
        ("ms (IQR)", "speed-up", "Gop/s", *["roof"] * bool(fractions), "record"),
        [
            (
                time_text(record),
                speedup_text(record),
                to_digits(record.measurement.giga_operations_per_s),
                *[_percent(fractions.get(record.id))] * bool(fractions),
                record.id[:ID_LENGTH],
                str(record.spec),
            )
            for record in records
        ],
        last="recipe",
    )


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{to_digits(fraction * 100, 3)}%"


def print_table(
    texts: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    last: str | None = None,
) -> None:
    """A table on stdout; in a file or a pipe, without COLUMNS, a row is one line.

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
    screen, wide = Console(highlight=False), Console(highlight=False, width=UNLIMITED)
    has_width = screen.is_terminal or bool(os.environ.get("COLUMNS"))
    is_wrapped = has_width and last is None
    for heading in texts:
        table.add_column(heading, no_wrap=not is_wrapped)
    for k, heading in enumerate(numbers, len(texts)):
        width = max(map(len, [heading, *(row[k] for row in rows)]))
        table.add_column(heading, min_width=width, no_wrap=True, justify="right")
    if last is not None:
        table.add_column(last, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    if is_wrapped:  # at the least width every word is still whole
        wide.width = max(screen.width, wide.measure(table).minimum)
    with wide.capture() as printed:
        wide.print(table)
    typer.echo(_trimmed(printed.get(), screen.width))


def _trimmed(text: str, width: int) -> str:
    """Lines without spaces at the end, and rules no wider than the screen."""
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(x[:width] if set(x) == {" ", "─"} else x for x in lines)
