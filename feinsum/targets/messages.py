"""Long texts of compilers and libraries, in short."""

from __future__ import annotations

__all__ = ["first_lines"]


def first_lines(cause: object, n_lines: int = 12, width: int = 200) -> str:
    """The first lines of a text that are not empty, each cut at ``width``.

    >>> first_lines("one" + chr(10) + chr(10) + "two", n_lines=1)
    'one ...'
    """
    lines = [line.rstrip()[:width] for line in str(cause).splitlines() if line.strip()]
    shown = "\n".join(lines[:n_lines])
    return f"{shown} ..." if len(lines) > n_lines else shown
