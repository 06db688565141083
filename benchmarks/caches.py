"""Caches of its own for a process that is measured from its start."""

from __future__ import annotations

from pathlib import Path

__all__ = ["empty_caches"]


def empty_caches(folder: str) -> dict[str, str]:
    """Variables that name new, empty caches in a folder."""
    folders = {
        "FEINSUM_CACHE_DIR": f"{folder}/feinsum",
        "POCL_CACHE_DIR": f"{folder}/pocl",
        "XDG_CACHE_HOME": f"{folder}/others",
    }
    for folder_name in folders.values():
        Path(folder_name).mkdir(mode=0o700)
    return folders
