"""A live service in this process: uvicorn on a real socket, with many databases.

Each database has an application of its own, below a path of its own. What a test used
is emptied and given to the next one, for making an application is slow.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn

from feinsum.db import HttpStore
from feinsum.db.sql.tables import Base
from feinsum.service import Settings, create_app
from tests.service.running import Server

TABLES = [table.name for table in reversed(Base.metadata.sorted_tables)]
"""Those that refer to others before these."""


class LiveService:
    """Gives out URLs of services, each over a database of its own.

    Attributes:
        requests: what was asked for, as method and path below the prefix.
    """

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder = folder
        self._settings = settings
        self._apps: dict[str, Any] = {}
        self._free: list[str] = []
        self._lifespans = AsyncExitStack()
        self.requests: list[str] = []
        self.port = 0
        self.loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lease(self) -> str:
        """The URL of a service with an empty database."""
        if self._free:
            return f"{self.url}/{self._free.pop()}"
        name = f"team{len(self._apps)}"
        done = asyncio.run_coroutine_threadsafe(self._make(name), self.loop)
        done.result(120)
        return f"{self.url}/{name}"

    def give_back(self, url: str) -> None:
        """Empty a database, for another test."""
        name = url.rpartition("/")[2]
        with closing(sqlite3.connect(self.path(url))) as connection, connection:
            for table in TABLES:
                connection.execute(f"DELETE FROM {table}")
        self._free.append(name)

    def path(self, url: str) -> Path:
        """The database behind a URL."""
        return self._folder / f"{url.rpartition('/')[2]}.sqlite"

    async def _make(self, name: str) -> None:
        chosen = {
            "database": str(self._folder / f"{name}.sqlite"),
            "anonymous_record": True,
            "freshness_s": 0,
            "rate_per_s": 0,
            "demand_every_s": 3600,
        } | self._settings
        app = create_app(Settings(**chosen))
        await self._lifespans.enter_async_context(app.router.lifespan_context(app))
        self._apps[name] = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        _, name, rest = scope["path"].split("/", 2)
        self.requests.append(f"{scope['method']} /{rest}")
        await self._apps[name](
            {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()},
            receive,
            send,
        )

    async def _live(self, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._lifespans.aclose()
        await send({"type": "lifespan.shutdown.complete"})


@contextmanager
def live_service(folder: Path, **settings: object) -> Iterator[LiveService]:
    """A service that answers until the end of the block."""
    service = LiveService(folder, **settings)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        service.port = listening.getsockname()[1]
        config = uvicorn.Config(service, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        try:
            yield service
        finally:
            server.should_exit = True
            thread.join(60)


@contextmanager
def served_here(database: str, folder: Path, **settings: object) -> Iterator[Server]:
    """A service over a database, like :func:`running`, but in this process."""
    with live_service(folder, database=database, **settings) as service:
        prefix = service.lease().removeprefix(service.url)
        yield Server(None, service.port, folder / "no.log", prefix=prefix)


@contextmanager
def leased_store(service: LiveService) -> Iterator[HttpStore]:
    """A new and empty store behind a live service."""
    url = service.lease()
    try:
        yield HttpStore.at(url)
    finally:
        service.give_back(url)
