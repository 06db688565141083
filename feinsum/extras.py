"""Packages that only some of feinsum needs, and what is said where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from feinsum.errors import FeinsumError

__all__ = ["requiring"]


@contextmanager
def requiring(package: str, extra: str, what: str) -> Iterator[None]:
    """In the body a package is imported; say so if it is not installed.

    Args:
        extra: of feinsum, which installs it.
        what: cannot be done without it.

    Raises:
        FeinsumError: if the package is missing, with the command that installs it.

    >>> with requiring("no_such_package", "all", "a dance"):
    ...     import no_such_package
    Traceback (most recent call last):
        ...
    feinsum.errors.FeinsumError: a dance needs no_such_package, which is not
    installed; run: pip install 'feinsum[all]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise FeinsumError(
            f"{what} needs {package}, which is not installed; "
            f"run: pip install 'feinsum[{extra}]'"
        ) from None
