"""Migrations of the schema, run by Alembic from inside the package.

``env.py`` and ``versions/`` are Alembic's own layout. There is no ``alembic.ini``:
:func:`upgrade` passes the connection.
"""

from __future__ import annotations

import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from feinsum.errors import StoreUnavailableError

__all__ = ["configuration", "upgrade"]

_one_at_a_time = threading.Lock()  # Alembic's context is global to the process


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration: the location of the revisions, and the connection."""
    config = Config()
    folder = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Upgrade a schema to a revision, within the transaction of ``connection``."""
    try:
        with _one_at_a_time:
            command.upgrade(configuration(connection), revision)
    except CommandError as error:
        raise StoreUnavailableError(
            f"the schema could not be brought to revision {revision!r}: {error}; "
            "reinstall feinsum"
        ) from None
