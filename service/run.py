"""Run the service under uvicorn."""

from __future__ import annotations

import gc
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from feinsum.db.server.serving import open_serving_store
from feinsum.errors import InvalidRequestError
from feinsum.service.app import create_app
from feinsum.service.metrics import FOLDER_VARIABLE
from feinsum.service.middleware import configure_logs
from feinsum.service.settings import (
    PREFIX,
    Settings,
    read_settings,
    warn_of_variables,
)

WORKER_STARTS_S = 60
"""How long a worker may take to import; uvicorn kills one that does not answer."""

STARTUP_FAILED = 3
"""Exit status of a process whose only worker did not start, as of uvicorn."""


def run(settings: Settings, announce: Callable[[str], None] = lambda _: None) -> None:
    """Serve until the process is interrupted or terminated.

    Each worker is a separate process, which reads the settings from its environment.
    Requests that are under way get ``shutdown_s`` to end.

    Args:
        settings: settings of the service.
        announce: called with the URL, once the database was opened and the port bound.

    Raises:
        StoreError: before the first request, if the database cannot be opened.
        InvalidRequestError: if the address cannot be bound.
    """
    # bound first, so that a port in use leaves no new database behind
    with listen(settings.host, settings.port) as listener:
        # migrates the database once, before several workers open it
        open_serving_store(settings.database).close()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce(f"http://{host}:{listener.getsockname()[1]}")
        configure_logs(settings.log_level)
        warn_of_variables()
        for name, value in settings.model_dump(exclude_none=True).items():
            # options of the command line reach the workers this way, and so does the
            # file as it was read when the service started
            os.environ[f"{PREFIX}{name.upper()}"] = str(value)
        with _share_metrics(settings.workers):
            _serve(settings, listener)


def listen(host: str, port: int) -> socket.socket:
    """Open a socket that accepts connections at an address.

    Raises:
        InvalidRequestError: if the address cannot be bound, as when another program
            listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # asyncio and socket append the address, which our message has already
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise InvalidRequestError(
            f"cannot listen on {host}, port {port} ({reason}); give another "
            "--host or --port, or stop the program there"
        ) from None


def _serve(settings: Settings, listener: socket.socket) -> None:
    """Run uvicorn as :func:`uvicorn.run` does, on a socket that is bound already."""
    config = uvicorn.Config(
        "feinsum.service.run:worker",
        factory=True,
        timeout_worker_healthcheck=WORKER_STARTS_S,
        workers=settings.workers,
        # JSON lines of our own replace uvicorn's logs
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_graceful_shutdown=settings.shutdown_s,
    )
    if settings.workers > 1:
        Multiprocess(config, sockets=[listener]).run()
        return
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    # a supervisor such as systemd restarts a process only if it failed
    if not server.started:
        sys.exit(STARTUP_FAILED)


@contextmanager
def _share_metrics(workers: int) -> Iterator[None]:
    """Create the folder in which several workers combine their metrics."""
    if workers == 1:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="feinsum-metrics-") as folder:
        # prometheus-client reads it when it is imported in a worker
        os.environ[FOLDER_VARIABLE] = folder
        yield


def worker() -> FastAPI:
    """Create the application of one worker process."""
    settings = read_settings()
    configure_logs(settings.log_level)
    app = create_app(settings)
    # imported modules and the application stay: exclude them from collections
    gc.freeze()
    return app
