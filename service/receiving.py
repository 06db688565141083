"""Facts that are sent: read, checked and stored, each in one pass."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from feinsum.db.server import Receipt
from feinsum.records import (
    DevicePeaks,
    PlanRecord,
    TuningRecord,
    check_plausible,
    check_unique_names,
    from_json,
    serialize,
)
from feinsum.service.answers import check_key
from feinsum.service.keys import Caller
from feinsum.service.state import Service

F = TypeVar("F", bound=TuningRecord | PlanRecord | DevicePeaks)


async def receive(
    kind: type[F], request: Request, service: Service, caller: Caller
) -> tuple[F, Receipt]:
    """Store the fact in a body, under the name of who sent it.

    The text by which it is judged is the one that is stored.

    Raises:
        InvalidRequestError: if its key cannot be one.
        InvalidRecordError: if it does not fit its schema, or is not plausible.
    """
    body = await request.body()

    def keep() -> tuple[F, Receipt]:
        fact = from_json(kind, body)
        if not isinstance(fact, DevicePeaks):
            check_key(fact.workload)
        serialized = serialize(fact)
        if body != serialized.text.encode():  # a canonical text repeats no name
            check_unique_names(body)
        check_plausible(fact, serialized)
        return fact, service.store.receive(
            fact, caller.name, serialized=serialized, is_trusted=caller.is_trusted
        )

    found = await run_in_threadpool(keep)
    service.lookup.expire()
    return found
