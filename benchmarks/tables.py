"""Tables of benchmarks, printed by rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import OverflowMethod
from rich.table import Table

__all__ = ["make_table"]


def make_table(
    texts: Sequence[str],
    numbers: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    no_wrap: bool = False,
    **options: Any,
) -> Table:
    """Make a table whose first columns are text, and whose others are numbers.

    Args:
        texts: heads of columns that are aligned left, and not wrapped.
        numbers: heads of columns that are aligned right.
        no_wrap: whether numbers and their heads are not wrapped.
        options: of :class:`rich.table.Table`.
    """
    table = Table(**({"box": box.SIMPLE, "pad_edge": False} | options))
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    # a number that is wider than its column keeps all digits, on two lines
    overflow: OverflowMethod = "ellipsis" if no_wrap else "fold"
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=no_wrap, overflow=overflow)
    for row in rows:
        table.add_row(*row)
    return table
