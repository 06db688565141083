"""Opening a database for as long as it is needed, whatever names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import TypeAlias

from feinsum.db.layers import LayeredStore
from feinsum.db.shipped import shipped_facts
from feinsum.db.store import open_store
from feinsum.records import RecordStore

__all__ = ["Database", "opened_store"]

Database: TypeAlias = str | PathLike[str] | RecordStore | None
"""A path or URL, an open store, or None for the user's own database."""


@contextmanager
def opened_store(
    database: Database, *, has_shipped: bool = False
) -> Iterator[RecordStore]:
    """The store that ``database`` names; closed at the end if opened here.

    Args:
        has_shipped: the facts of this installation are known too, if ``database``
            is the user's own.

    Raises:
        StoreUnavailableError, SchemaVersionError: see :func:`open_store`.
    """
    if isinstance(database, RecordStore):
        yield database
        return
    store = open_store(database)
    try:
        is_own = database is None and has_shipped
        yield LayeredStore([store, shipped_facts()]) if is_own else store
    finally:
        store.close()
