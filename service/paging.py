"""Lists, page by page, for ``/v1`` and for the pages in a browser.

Each page ends with the cursor of the next one: the position of its last entry, as text
that only the service reads. ``DEVICES.page(store, cursor, 50)`` gives 50 devices and
the cursor of those that follow.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from fastapi import Query

from feinsum.db.server.pages import ListedDevice, ListedFact, ListedWorkload, is_cut
from feinsum.db.server.serving import ServingStore
from feinsum.errors import InvalidRecordError, InvalidRequestError
from feinsum.records import Demand, Retraction
from feinsum.records.document import parse_instant
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
    """Return a position in a list as text.

    >>> from_cursor(to_cursor(7, "é"), int, str)
    (7, 'é')
    """
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def from_cursor(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """Invert :func:`to_cursor`, for a position of values of these types.

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
    # Databases compare integers of 32 bits, and texts without NUL and lone surrogates.
    if not is_position or any(
        abs(x) >= 2**31 if isinstance(x, int) else not is_storable(x) for x in position
    ):
        raise InvalidRequestError(
            f"the cursor {cursor[:50]!a} was given, expected `next` of the "
            "previous page"
        )
    return tuple(position)


def _parse_key_cursor(cursor: str | None) -> str:
    """Return the key or id before a page; empty for the first page."""
    return str(from_cursor(cursor, str)[0]) if cursor else ""


def _parse_retraction_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    if not cursor:
        return None
    time, last = from_cursor(cursor, str, str)
    try:
        return parse_instant(time), last
    except InvalidRecordError as error:
        raise InvalidRequestError(f"the cursor names no time: {error}") from None


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A list that is read page by page.

    Attributes:
        reader: the method of a store that reads entries: after a position, and how
            many at most. More arguments filter.
        position: of an entry, as :func:`to_cursor` takes it.
        length: characters of an entry; few long entries fill a page.
        after: the position that a cursor names; None for the first page.
    """

    reader: Callable[[ServingStore], Callable[..., Sequence[T]]]
    position: Callable[[T], tuple[str | int, ...]]
    length: Callable[[T], int] = lambda _: 0
    after: Callable[[str | None], Any] = _parse_key_cursor

    def read_page(
        self, store: ServingStore, cursor: str | None, limit: int, **filters: Any
    ) -> tuple[Sequence[T], str | None]:
        """Read a page, and the cursor of the next one if there may be one.

        Raises:
            InvalidRequestError: if the service gave no such cursor.
        """
        entries = self.reader(store)(self.after(cursor), limit, **filters)
        return entries, make_next_cursor(entries, limit, self.position, self.length)


def make_next_cursor(
    entries: Sequence[T],
    limit: int,
    position: Callable[[T], tuple[str | int, ...]],
    length: Callable[[T], int],
) -> str | None:
    """Return the cursor of the page that follows; None if this page is not full.

    >>> make_next_cursor("abc", 3, lambda x: (x,), len) == to_cursor("c")
    True
    >>> make_next_cursor("abc", 4, lambda x: (x,), len) is None
    True
    """
    # a full page may be the last one; then the next is empty
    is_full = len(entries) == limit or is_cut(map(length, entries))
    return to_cursor(*position(entries[-1])) if is_full else None


WORKLOADS = Listing[ListedWorkload](
    lambda store: store.page_of_workloads, lambda w: (w.key,), lambda w: len(w.text)
)
DEVICES = Listing[ListedDevice](
    lambda store: store.page_of_devices, lambda d: (d.id,), lambda d: d.n_characters
)
FACTS = Listing[ListedFact](
    lambda store: store.page_of_facts, lambda f: (f.id,), lambda f: len(f.document)
)
PLANS = Listing[ListedFact](
    lambda store: store.page_of_plans, lambda p: (p.id,), lambda p: len(p.document)
)
DEMANDS = Listing[Demand](
    lambda store: store.demands,
    lambda demand: demand.sort_key,
    lambda demand: len(demand.workload_text or ""),
    lambda cursor: from_cursor(cursor, int, int, str, str) if cursor else None,
)
RETRACTIONS = Listing[Retraction](
    lambda store: store.retractions,
    lambda retraction: (retraction.retracted_at, retraction.id),
    after=_parse_retraction_cursor,
)
