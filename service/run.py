"""Running the service under uvicorn."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from feinsum.db.server import open_serving_store
from feinsum.service.app import create_app
from feinsum.service.logs import configure
from feinsum.service.metrics import FOLDER_VARIABLE
from feinsum.service.settings import PREFIX, Settings, read_settings

__all__ = ["run", "worker"]

PROTOCOL = "feinsum.service.wire:LimitedProtocol"
"""By its name, so that a worker imports it when it can tell already that it lives."""

WORKER_STARTS_S = 60
"""Within how many seconds a worker has to tell that it lives."""


def run(settings: Settings, tell: Callable[[], None] = lambda: None) -> None:
    """Serve until the process is interrupted or told to end.

    Each worker is a separate process, which reads the settings from its environment.
    Requests that are under way get ``shutdown_s`` to end.

    Args:
        tell: called once the database was opened.

    Raises:
        StoreError: before the first request, if the database cannot be opened.
    """
    open_serving_store(settings.database).close()
    tell()
    configure(settings.log_level)
    for name, value in settings.model_dump(exclude_none=True).items():
        os.environ[f"{PREFIX}{name.upper()}"] = str(value)
    with _shared_metrics(settings.workers):
        uvicorn.run(
            "feinsum.service.run:worker",
            factory=True,
            http=PROTOCOL,
            timeout_worker_healthcheck=WORKER_STARTS_S,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_config=None,
            access_log=False,
            server_header=False,
            forwarded_allow_ips=settings.trusted_proxies,
            timeout_graceful_shutdown=settings.shutdown_s,
        )


@contextmanager
def _shared_metrics(workers: int) -> Iterator[None]:
    """A folder where several workers put their numbers together."""
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="feinsum-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        yield


def worker() -> FastAPI:
    """The application of one worker process."""
    settings = read_settings()
    configure(settings.log_level)
    app = create_app(settings)
    gc.freeze()  # what was made until now stays; it is not looked at again
    return app
