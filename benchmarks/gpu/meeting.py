"""Where the processes of a measurement wait for each other. Only Python is needed."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 8.0
"""For which processes wait for one that still builds, and after the end."""
TIMING_SHARE = 0.35
"""Of the budget, for timing."""


@dataclass(frozen=True)
class Meeting:
    """All processes build what they time, wait for each other, and time in turns.

    Compilers of the others would slow down the host's part of a call.

    Attributes:
        folder: empty at first.
    """

    folder: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process times anything."""
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            yield

    def arrive(self, worker: int) -> None:
        """Note that a process builds nothing more."""
        (self.folder / str(worker)).touch()

    def wait(self, n_workers: int, limit: float) -> None:
        """Wait until all processes are here, or the limit, a time, is over."""
        places = [self.folder / str(k) for k in range(n_workers)]
        while time.time() < limit and not all(place.exists() for place in places):
            time.sleep(0.1)
