"""The parts of one running service, and what its routes require of callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from feinsum.db.server.api_keys import Scope
from feinsum.db.server.serving import ServingStore
from feinsum.db.sql.trust import Receipt
from feinsum.records import (
    DevicePeaks,
    PlanRecord,
    TuningRecord,
    check_plausible,
    from_json,
    parse_json,
    serialize,
)
from feinsum.service.answers import check_key
from feinsum.service.demand import MissCounter
from feinsum.service.keys import KeyHolder, require
from feinsum.service.lookup import Lookup
from feinsum.service.middleware import get_caller
from feinsum.service.settings import Settings

T = TypeVar("T")

F = TypeVar("F", bound=TuningRecord | PlanRecord | DevicePeaks)

MAX_LISTINGS = 2
"""Long lists that a worker reads at once; look-ups share its processor with them.
"""


@dataclass(frozen=True)
class Service:
    """The parts of one running service."""

    settings: Settings
    store: ServingStore
    lookup: Lookup
    misses: MissCounter
    _listings: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_LISTINGS)
    )

    async def read_list(self, read: Callable[[], T]) -> T:
        """Read a long list in a thread, once few others do."""
        async with self._listings:
            return await run_in_threadpool(read)

    async def receive(
        self, kind: type[F], request: Request, caller: KeyHolder
    ) -> tuple[F, Receipt]:
        """Check the document in a body, and store it under the name of its sender.

        Raises:
            InvalidRequestError: if its key has not the form of one.
            InvalidRecordError: if it does not fit its schema, or is not plausible.
        """
        body = await request.body()

        def store() -> tuple[F, Receipt]:
            fact = from_json(kind, body)
            # limits are of a device, and have no workload
            if not isinstance(fact, DevicePeaks):
                check_key(fact.workload)
            serialized = serialize(fact)
            # Parsers differ in which of two equal names they take, so the text must
            # repeat none. A canonical text does not.
            if body != serialized.text.encode():
                parse_json(body)
            check_plausible(fact, serialized)
            # store the text that was checked
            return fact, self.store.receive(
                fact, caller.name, serialized=serialized, is_trusted=caller.is_trusted
            )

        received = await run_in_threadpool(store)
        # so that the sender finds its fact at once
        self.lookup.expire()
        return received

    @property
    def visibility(self) -> str:
        """Whether shared caches may keep what was read."""
        return "public" if self.settings.anonymous_read else "private"


async def get_service(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service


def _with_scope(scope: Scope) -> Callable[[Request], Coroutine[Any, Any, KeyHolder]]:
    # a coroutine, for FastAPI runs other dependencies in threads
    async def caller(request: Request) -> KeyHolder:
        require(get_caller(request.scope), scope)
        return get_caller(request.scope)

    return caller


TheService = Annotated[Service, Depends(get_service)]
Reading = Annotated[KeyHolder, Depends(_with_scope("read"))]
Recording = Annotated[KeyHolder, Depends(_with_scope("record"))]
Admin = Annotated[KeyHolder, Depends(_with_scope("admin"))]
