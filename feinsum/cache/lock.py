"""A lock between processes that share a cache; the system frees that of a dead one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["locked"]


@contextmanager
def locked(folder: Path, name: str, patience_s: float) -> Iterator[bool]:
    """Have a lock alone in the body, or go on without it when patience ends.

    Args:
        folder: of the lock's file; made with access for the user alone.

    Yields:
        whether it is locked. It is not where no such file can be made.
    """
    with ExitStack() as held:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(folder / name, timeout=patience_s, mode=0o600)
            held.enter_context(lock)
        except (Timeout, OSError, NotImplementedError):  # or a system without locks
            yield False
        else:
            yield True
