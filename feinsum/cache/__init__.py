"""Entries kept on disk between processes, all of which can be made again."""

from feinsum.cache.folder import (
    CACHE_VARIABLE,
    CacheInfo,
    DiskCache,
    cache_folder,
    default_cache,
    locked,
)

__all__ = [
    "CACHE_VARIABLE",
    "CacheInfo",
    "DiskCache",
    "cache_folder",
    "default_cache",
    "locked",
]
