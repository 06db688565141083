"""Where a call is computed, and with which facts: all that determines its kernel."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from feinsum.device_arrays import is_device_array
from feinsum.errors import DeviceUnavailableError
from feinsum.options import DATABASE_VARIABLE, DEVICE_VARIABLE, Effort

if TYPE_CHECKING:
    from feinsum.db import Database
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss


class Place(NamedTuple):
    """Where a call is computed; a context does not survive a fork."""

    process: int
    queue: int
    selector: str

    @property
    def is_host(self) -> bool:
        """For operands on the host; any matching device will do."""
        return not self.queue


Where: TypeAlias = "tuple[Place, Hashable, Policy | None, OnMiss, Effort]"
"""All that decides which kernel is found for an einsum."""


def place_of(arrays: Sequence[Any], device: str | None) -> Place:
    if not any(map(is_device_array, arrays)):
        named = os.environ.get(DEVICE_VARIABLE, "") if device is None else device
        return Place(os.getpid(), 0, named)
    if device is not None:
        raise DeviceUnavailableError(
            f"device={device!r} was given, but the operands are on a device already; "
            "omit it: the einsum is evaluated where they are"
        )
    from feinsum.targets.opencl.device import check_device_arrays

    check_device_arrays(arrays)
    queue = arrays[0].queue
    return Place(os.getpid(), queue.int_ptr, str(queue.device.int_ptr))


def name_of(database: Database) -> Hashable:
    """Identifies a database; a store by itself, which keys keep alive."""
    if database is None:
        return os.environ.get(DATABASE_VARIABLE, "")
    if isinstance(database, str | os.PathLike):
        return os.fspath(database)
    # an id alone may be that of another store once this one is gone
    return database if type(database).__hash__ is not None else id(database)
