"""Turns on a device that several processes of a machine share.

What runs on the device has it alone: a process waits for its turn with a lock on a
file, and the kernel of the operating system ends a turn whose process is gone. The
file stands for the device on this machine, for one user and one temporary folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from feinsum.errors import MeasurementError
from feinsum.measure import OpenCLDevice

__all__ = ["Turn", "take_turn", "turn_file"]

Turn: TypeAlias = Callable[[], AbstractContextManager[None]]


def turn_file(opencl: OpenCLDevice) -> Path:
    """The file that stands for a device; equal ones that cannot be told apart share."""
    name = f"feinsum-{os.geteuid()}-{opencl.device.id[:16]}-{opencl.slot}.lock"
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
    try:
        file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise MeasurementError(
            f"no turn on the device can be taken: {path}: {error.strerror}"
        ) from None
    try:
        _lock(file, on_wait)
        yield
    finally:
        os.close(file)


def _lock(file: int, on_wait: Callable[[bool], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait(True)
        fcntl.flock(file, fcntl.LOCK_EX)
        on_wait(False)
