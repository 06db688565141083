"""The memory that is free, of the machine or of a container.

It needs neither Loopy nor the tuner: every rank of a distributed program reads it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def get_free_memory_bytes() -> int:
    """Return the free bytes of the machine, or of the container of this process."""
    import psutil  # not where a module is imported and nothing is run

    # The limit of a container may be below what the machine has free.
    return int(min([psutil.virtual_memory().available, *_read_group_limits()]))


def _read_group_limits() -> list[int]:
    """Return the memory left by a container's control group, if it has a limit."""
    with suppress(OSError, ValueError):  # without such a group, or without a limit
        most = int((_CGROUP / "memory.max").read_text())
        return [max(0, most - int((_CGROUP / "memory.current").read_text()))]
    return []
