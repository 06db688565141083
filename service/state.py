"""State shared by all routes: the parts of one running service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from feinsum.db.server import ServingStore
from feinsum.service.demand import MissCounter
from feinsum.service.gate import caller_of
from feinsum.service.keys import Caller, require
from feinsum.service.lookup import Lookup
from feinsum.service.pages.notations import Notations
from feinsum.service.settings import Settings

T = TypeVar("T")

LISTINGS_AT_ONCE = 2
"""How many long lists a worker reads at once; look-ups share its processor with them.
"""


@dataclass(frozen=True)
class Service:
    """The parts of one running service."""

    settings: Settings
    store: ServingStore
    lookup: Lookup
    misses: MissCounter
    notations: Notations
    _listings: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(LISTINGS_AT_ONCE)
    )

    async def listed(self, read: Callable[[], T]) -> T:
        """What reads a long list, in a thread, once few others do."""
        async with self._listings:
            return await run_in_threadpool(read)

    @property
    def visibility(self) -> str:
        """Whether caches that many share may keep what was read."""
        return "public" if self.settings.anonymous_read else "private"


async def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service: Service = request.app.state.service
    return service


async def _reading(request: Request) -> Caller:
    require(caller_of(request.scope), "read")
    return caller_of(request.scope)


async def _recording(request: Request) -> Caller:
    require(caller_of(request.scope), "record")
    return caller_of(request.scope)


async def _admin(request: Request) -> Caller:
    require(caller_of(request.scope), "admin")
    return caller_of(request.scope)


TheService = Annotated[Service, Depends(service_of)]
Reading = Annotated[Caller, Depends(_reading)]
Recording = Annotated[Caller, Depends(_recording)]
Admin = Annotated[Caller, Depends(_admin)]
