"""Optional packages, and the error that says how to install one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from feinsum.errors import FeinsumError


@contextmanager
def require_extra(
    package: str,
    extra: str | None,
    feature: str,
    error_of: Callable[[str], FeinsumError] = FeinsumError,
) -> Iterator[None]:
    """Explain, if the import of a package in the body fails, how to install it.

    Args:
        package: its name in a package index.
        extra: the extra of feinsum that installs it; None if there is none.
        feature: the feature that needs it.
        error_of: makes the error from a message.

    Raises:
        FeinsumError: if the body raises an ImportError, with the command that installs
            the package.

    >>> with require_extra("no_such_package", "all", "a dance"):
    ...     import no_such_package
    Traceback (most recent call last):
        ...
    feinsum.errors.FeinsumError: a dance needs no_such_package, which is not
    installed; run: pip install 'feinsum[all]'
    """
    try:
        yield
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        # an import error inside an installed package is not a missing package
        is_missing = (absent or "").partition(".")[0] == package
        why = "is not installed" if is_missing else f"cannot be imported ({error})"
        target = package if extra is None else f"'feinsum[{extra}]'"
        message = f"{feature} needs {package}, which {why}; run: pip install {target}"
        raise error_of(message) from error
