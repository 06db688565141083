"""Packages that only some commands need."""

from __future__ import annotations

from types import ModuleType

from feinsum.extras import requiring


def service() -> ModuleType:
    """The service, if what it needs is installed.

    Raises:
        FeinsumError: naming the package that is missing.
    """
    with requiring("fastapi", "service", "the service"):
        import feinsum.service
    return feinsum.service
