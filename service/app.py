"""The REST service and its pages, put together.

A look-up of ``i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x`` on a CPU is::

    GET /v1/best/fe2-nauty2.8-0f7c...?architecture=cpu/x86_64

Its answer comes from :mod:`feinsum.service.lookup`, which keeps answers, or from the
database. The service needs no code generator and no OpenCL. Facts are sent and answered
as the JSON documents of :mod:`feinsum.records`; errors are problem documents (RFC 9457)
with the codes of :mod:`feinsum.errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route

from feinsum.db.server.demand import DemandLimits
from feinsum.db.server.serving import open_serving_store
from feinsum.service.demand import MissCounter
from feinsum.service.keys import KeyRing
from feinsum.service.lookup import Lookup
from feinsum.service.middleware import Admission, RequestLog
from feinsum.service.pages.routes import router as pages
from feinsum.service.problems import ALWAYS, Problem, add_problems, describe_problems
from feinsum.service.routes import best, canonicalization, documents, lists
from feinsum.service.settings import Settings, read_settings
from feinsum.service.state import Service

ROUTERS = (
    best.router,
    documents.router,
    lists.router,
    canonicalization.router,
    pages,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the application over one database, which it closes at shutdown.

    Args:
        settings: those of the environment by default.

    Raises:
        StoreError: if the database cannot be opened.
    """
    settings = settings or read_settings()
    service = _make_service(settings)
    app = FastAPI(
        title="feinsum",
        version="1",
        summary="Tuning records of einsums",
        lifespan=_run_lifespan,
        # pages load no scripts from elsewhere, which these viewers do
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        telemetry={"tracing": False, "metrics": False, "logs": False},
        generate_unique_id_function=lambda route: route.name,
        responses=describe_problems(*ALWAYS),
    )
    # routes find the parts of the service by the request, so that tests may have
    # several
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(documents.removed)
    routes = [route for router in ROUTERS for route in router.routes]
    add_problems(app, [route for route in routes if isinstance(route, Route)])
    app.openapi = partial(_describe, app)  # type: ignore[method-assign]
    # the last one added is outermost: requests are logged before anything else
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    app.add_middleware(best.Shortcut)
    keys = KeyRing(service.store.key, settings.anonymous_scopes)
    app.add_middleware(Admission, keys=keys, settings=settings)
    app.add_middleware(RequestLog)
    return app


def _make_service(settings: Settings) -> Service:
    store = open_serving_store(settings.database)
    lookup = Lookup(store.reader(), settings.freshness_s, settings.cache_mb * 2**20)
    # misses come from anyone: their number is bounded for each caller and in all
    limits = DemandLimits(
        settings.max_demands, settings.max_demands_of_caller, settings.demand_days
    )
    misses = MissCounter(partial(store.add_misses, limits=limits))
    return Service(settings, store, lookup, misses)


@asynccontextmanager
async def _run_lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Write misses while the service runs; at the end the last ones, and close."""
    service: Service = app.state.service
    every_s = service.settings.demand_every_s
    # one task, so that two writes never overlap
    writing = asyncio.create_task(service.misses.flush_forever(every_s))
    try:
        yield
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        # what was counted since the last write would be lost
        await service.misses.flush()
        service.lookup.close()
        service.store.close()


def _describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document: FastAPI's, with problems and keys."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        components = document["components"]
        components["schemas"]["Problem"] = Problem.model_json_schema()
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
