"""Failures of the machine, which affect every kernel: each is reported once."""

from __future__ import annotations

from feinsum.errors import BuildError, DeviceUnavailableError, StoreUnavailableError
from feinsum.memory import get_remembered

OF_MACHINE = OSError, BuildError, DeviceUnavailableError, StoreUnavailableError


class _Reported(set[str]):
    """The causes that this process has reported."""


def is_known_cause(error: Exception, about: str) -> bool:
    """Return whether this process has reported a failure of the machine, and note it.

    Other failures concern one kernel, and are never known.

    Args:
        error: the failure.
        about: the operation that failed, such as ``retrieve``; each reports on its own.

    >>> from feinsum.memory import use_fresh_memory
    >>> with use_fresh_memory():
    ...     for name in "ab":
    ...         full = OSError(28, "No space left on device", name)
    ...         print(is_known_cause(full, "retrieve"))
    False
    True
    """
    # a failure of one kernel says nothing about the next
    if not isinstance(error, OF_MACHINE):
        return False
    # not the text, which has the name of the file
    reason = str(error.errno) if isinstance(error, OSError) else str(error)
    cause = f"{about}: {type(error).__name__}: {reason}"
    reported = get_remembered(_Reported)
    is_known = cause in reported
    reported.add(cause)
    return is_known
