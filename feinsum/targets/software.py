"""Versions of the packages that a timing depends on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["software"]

PACKAGES = ("feinsum", "islpy", "loopy", "numpy")


def software(*more: str) -> dict[str, str]:
    """The version of each package and of Python.

    Args:
        more: packages that one target alone depends on.
    """
    versions = {name: _version(name) for name in (*PACKAGES, *more)}
    return versions | {"python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
