"""Turns on a device shared by several processes of a machine.

Each turn has the device exclusively: a process waits for a lock on a file, which the
operating system releases when the process ends. The file represents the device on this
machine, for one user and one temporary folder.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout

from feinsum.errors import MeasurementError
from feinsum.measure import OpenDevice

__all__ = ["Turn", "lock_file", "locked_device"]

Turn: TypeAlias = Callable[[], AbstractContextManager[None]]


def lock_file(opened: OpenDevice) -> Path:
    """The file that represents a device; indistinguishable devices share one."""
    name = f"feinsum-{os.geteuid()}-{opened.device.id[:16]}-{opened.slot}.lock"
    return Path(tempfile.gettempdir()) / re.sub(r"[^\w.-]", "_", name)


@contextmanager
def locked_device(path: Path, on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Hold the device exclusively in the body.

    Args:
        on_wait: called with True before a wait and with False after it, if the
            device is not free.

    Raises:
        MeasurementError: if the file cannot be created.
    """
    lock = FileLock(path, mode=0o600)
    try:
        _acquire(lock, on_wait)
    except OSError as error:
        raise MeasurementError(
            f"cannot lock the device: {path}: {error.strerror}"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, on_wait: Callable[[bool], None]) -> None:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        on_wait(True)
        lock.acquire()
        on_wait(False)
