"""Packages that only some commands need."""

from __future__ import annotations

from types import ModuleType

from feinsum.errors import FeinsumError

__all__ = ["service"]


def service() -> ModuleType:
    """The service, if what it needs is installed.

    Raises:
        FeinsumError: naming the package that is missing.
    """
    try:
        import feinsum.service
    except ImportError as error:
        raise FeinsumError(
            f"the service needs {error.name}, which is not installed; "
            "run: pip install 'feinsum[service]'"
        ) from None
    return feinsum.service
