"""Backups: a copy of a whole database, made while others write.

A file is copied by SQLite's online backup, a consistent snapshot. A server is written
as JSON Lines, trials included: all documents present at the start, and perhaps some
that arrived during the copy.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from feinsum.db.exchange.files import write_file
from feinsum.db.exchange.merging import all_documents
from feinsum.db.sql.sqlite_file import copy_database
from feinsum.db.sql.store import SqlStore
from feinsum.errors import StoreUnavailableError


def back_up_store(store: SqlStore, path: Path) -> Path:
    """Write a copy of a database to a new file, which gets its name when complete.

    Args:
        path: path of the copy; for a server, ``.jsonl`` is appended if missing.

    Returns:
        The path of the copy.

    Raises:
        StoreUnavailableError: if the file exists or cannot be written.
    """
    # The suffix says how to restore it: a server is written as text.
    if store.path is None and path.suffix != ".jsonl":
        path = path.with_name(f"{path.name}.jsonl")
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if store.path is None:
            write_file(all_documents(store, has_trials=True), path)
        else:
            copy_database(store.path, part)
            part.rename(path)  # a reader never sees half a copy
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(
            f"cannot write a backup to {path}: {error}; give the path of a new file in "
            "a writable folder"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return path
