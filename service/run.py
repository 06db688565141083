"""Running the service under uvicorn."""

from __future__ import annotations

import uvicorn

from feinsum.db import Database, opened_store
from feinsum.service.app import create_app

__all__ = ["run"]


def run(database: Database, host: str, port: int) -> None:
    """Serve until the process is interrupted.

    Raises:
        StoreError: before the first request, if the database cannot be opened.
    """
    with opened_store(database) as store:
        uvicorn.run(create_app(store), host=host, port=port, log_level="info")
