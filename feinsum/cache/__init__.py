"""Entries kept on disk between processes, all of which can be made again."""

from feinsum.cache.folder import CacheInfo, DiskCache
from feinsum.cache.location import CACHE_VARIABLE, cache_folder, default_cache
from feinsum.cache.lock import locked

__all__ = [
    "CACHE_VARIABLE",
    "CacheInfo",
    "DiskCache",
    "cache_folder",
    "default_cache",
    "locked",
]
