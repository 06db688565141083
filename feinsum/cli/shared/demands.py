"""Demand of a database, or of a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feinsum.records import Demand

PAGE = 1000


def demands_in(source: str | None) -> Iterator[Demand]:
    """Failed look-ups, most wanted first; :data:`PAGE` of them from a database.

    Args:
        source: URL of a service, or the location of its database.

    Raises:
        StoreUnavailableError: if it does not answer.
        ServiceError: if it refuses, or is no service of ours.
    """
    from feinsum.db import HttpStore, is_service
    from feinsum.db.server import open_serving_store

    if source is not None and is_service(source):
        yield from HttpStore.at(source).demands()
        return
    with open_serving_store(source, may_create=False) as store:
        found = store.demands(limit=PAGE)
    yield from found
