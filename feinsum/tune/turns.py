"""Turns on a device that several processes of a machine share.

What runs on the device has it alone: a process waits for its turn with a lock on a
file, and the kernel of the operating system ends a turn whose process is gone. The
file stands for the device on this machine, for one user and one temporary folder.
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

__all__ = ["Turn", "take_turn", "turn_file"]

Turn: TypeAlias = Callable[[], AbstractContextManager[None]]


def turn_file(opened: OpenDevice) -> Path:
    """The file that stands for a device; equal ones that cannot be told apart share."""
    name = f"feinsum-{os.geteuid()}-{opened.device.id[:16]}-{opened.slot}.lock"
    return Path(tempfile.gettempdir()) / re.sub(r"[^\w.-]", "_", name)


@contextmanager
def take_turn(path: Path, on_wait: Callable[[bool], None]) -> Iterator[None]:
    """Have the device alone in the body.

    Args:
        on_wait: called with True before a wait and with False after it, if the
            device is not free.

    Raises:
        MeasurementError: if there can be no such file.
    """
    lock = FileLock(path, mode=0o600)
    try:
        _acquire(lock, on_wait)
    except OSError as error:
        raise MeasurementError(
            f"no turn on the device can be taken: {path}: {error.strerror}"
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
