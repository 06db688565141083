"""Where the cache of the user is."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_dir

from feinsum.cache.folder import DiskCache

__all__ = ["CACHE_VARIABLE", "OFF", "cache_folder", "default_cache"]

CACHE_VARIABLE = "FEINSUM_CACHE_DIR"
"""Environment variable with the folder of the cache, or ``off``."""

OFF = "off"


def cache_folder() -> Path | None:
    """The folder that the variable names, or that of the user; None if it is off."""
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    if named.lower() == OFF:
        return None
    return Path(named or user_cache_dir("feinsum", appauthor=False)).expanduser()


def default_cache() -> DiskCache | None:
    """The cache of the user, unless it is off."""
    folder = cache_folder()
    return None if folder is None else DiskCache(folder)
