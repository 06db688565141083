"""Keep Loopy's caches in memory where they cannot be on disk.

``import loopy`` opens databases in the folder of the user's caches, and raises where
there is none: in containers, for daemons, with a full disk or a used up quota. Every
package that imports Loopy imports this module first. It changes nothing where the
folder is usable, which is the rule.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path
from threading import Lock
from typing import Any

from platformdirs import user_cache_dir

N_BYTES = 1 << 14
"""Bytes of a small database, which the disk must have free."""


def get_loopy_folder() -> Path:
    """Return the folder of Loopy's databases."""
    return Path(user_cache_dir("pytools", "pytools"))


def find_folder_problem(folder: Path) -> str:
    """Return why a folder cannot hold a small database; empty if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # a quota shows only when something is written
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            if file.write(bytes(N_BYTES)) < N_BYTES:
                return f"{folder}: there is no room"
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


def _keep_in_memory() -> None:
    """Make pytools open Loopy's databases in memory where no file can be created."""
    from pytools import persistent_dict

    base = persistent_dict._PersistentDictBase  # noqa: SLF001  (no public way)
    usual = base.__init__

    def open_anywhere(self: Any, identifier: str, *args: Any, **options: Any) -> None:
        try:
            usual(self, identifier, *args, **options)
        # the folder was usable at the start, and may be full now
        except (OSError, sqlite3.Error):
            self.mutex = Lock()
            self.filename = ":memory:"
            self.conn = sqlite3.connect(
                self.filename, isolation_level=None, check_same_thread=False
            )
            self.conn.execute(
                "CREATE TABLE dict "
                "(keyhash TEXT NOT NULL PRIMARY KEY, key_value TEXT NOT NULL)"
            )

    base.__init__ = open_anywhere


if "loopy" not in sys.modules and find_folder_problem(get_loopy_folder()):
    _keep_in_memory()
