"""Cursors: where a page ended, as text that only the service reads."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Query

from feinsum.db.server import is_cut
from feinsum.errors import InvalidRequestError
from feinsum.service.texts import is_storable

T = TypeVar("T")

MAX_LISTED = 1000

Limit: TypeAlias = Annotated[
    int, Query(ge=1, le=MAX_LISTED, description="Maximum number to list.")
]
Cursor: TypeAlias = Annotated[
    str | None,
    Query(max_length=1000, description="`next` of the previous page, if any."),
]


def to_cursor(*position: str | int) -> str:
    """A position in a list as text.

    >>> from_cursor(to_cursor(7, "é"), int, str)
    (7, 'é')
    """
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def next_cursor(
    entries: Sequence[T],
    limit: int,
    position: Callable[[T], tuple[str | int, ...]],
    length: Callable[[T], int] = lambda _: 0,
) -> str | None:
    """The cursor of what comes after a page; None if the page is not full.

    Args:
        length: of an entry, for a page may be full of few long ones.

    >>> next_cursor("abc", 3, lambda letter: (letter,)) == to_cursor("c")
    True
    >>> next_cursor("abc", 4, lambda letter: (letter,)) is None
    True
    """
    # a full page may be the last one; then the next is empty
    is_full = len(entries) == limit or is_cut(map(length, entries))
    return to_cursor(*position(entries[-1])) if is_full else None


def key_after(cursor: str | None) -> str:
    """The key or id before a page; empty for the first page.

    Raises:
        InvalidRequestError: see :func:`from_cursor`.
    """
    return str(from_cursor(cursor, str)[0]) if cursor else ""


def from_cursor(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """Inverse of :func:`to_cursor`, for a position of values of these types.

    Raises:
        InvalidRequestError: for any other text.
    """
    try:
        # the padding was stripped, for it is escaped in URLs
        padded = cursor + "=" * (-len(cursor) % 4)
        position = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    # RecursionError: deeply nested JSON
    except (binascii.Error, ValueError, RecursionError):
        position = None
    is_position = isinstance(position, list)
    is_position = is_position and [type(x) for x in position] == list(kinds)
    # databases have integers of 32 bits in the columns that are compared
    if not is_position or any(type(x) is int and abs(x) >= 2**31 for x in position):
        raise InvalidRequestError(
            f"the cursor {cursor[:50]!r} was given, expected `next` of the previous "
            "page"
        )
    # the text is compared with a column, and PostgreSQL refuses it
    if any(isinstance(x, str) and not is_storable(x) for x in position):
        raise InvalidRequestError(
            "the cursor has a character that no database can store, expected `next` of "
            "the previous page"
        )
    return tuple(position)
