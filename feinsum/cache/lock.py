"""A lock between processes that share a cache; the system frees that of a dead one."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["locked"]

_STEP_S = 0.05


@contextmanager
def locked(folder: Path, name: str, patience_s: float) -> Iterator[bool]:
    """Have a lock alone in the body, or go on without it when patience ends.

    Args:
        folder: of the lock's file; made with access for the user alone.

    Yields:
        whether it is locked. It is not where no such file can be made.
    """
    file = -1
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(folder / name, flags, 0o600)
    try:
        yield file >= 0 and _is_locked(file, time.monotonic() + patience_s)
    finally:
        if file >= 0:
            os.close(file)


def _is_locked(file: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_STEP_S)
        except OSError:  # a file system without locks
            return False
        else:
            return True
