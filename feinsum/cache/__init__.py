"""Entries kept on disk between processes, all of which can be made again."""

from feinsum.cache.folder import (
    CACHE_VARIABLE,
    CacheInfo,
    DiskCache,
    cache_folder,
    get_default_cache,
    hold_file_lock,
)

__all__ = [
    "CACHE_VARIABLE",
    "CacheInfo",
    "DiskCache",
    "cache_folder",
    "get_default_cache",
    "hold_file_lock",
]
