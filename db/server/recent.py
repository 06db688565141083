"""Results of costly reads, kept so long that they take little of a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache

__all__ = ["Recent"]

T = TypeVar("T")

COSTLY_S = 0.02
"""A read that takes less of a processor is done again each time."""

FACTOR = 20
"""How many times as long as it took to read a result is kept."""

MOST_KEPT = 256


class Recent:
    """Results by name; of many who ask at once, one reads.

    >>> recent = Recent()
    >>> recent("cheap", lambda: 1), recent("cheap", lambda: 2)
    (1, 2)
    """

    def __init__(
        self,
        cpu_s: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_s, self._clock = cpu_s, clock
        self._lock = Lock()
        self._kept: LRUCache[Hashable, tuple[float, Any]] = LRUCache(MOST_KEPT)

    def __call__(self, name: Hashable, read: Callable[[], T]) -> T:
        """The result of ``read``, or one of at most :data:`FACTOR` times its cost ago.

        Args:
            name: equal for equal reads; results are small.
        """
        with self._lock:
            until, kept = self._kept.get(name, (0.0, None))
            if self._clock() < until:
                found: T = kept
                return found
            before = self._cpu_s()
            found = read()
            cost_s = self._cpu_s() - before
            if cost_s > COSTLY_S:
                self._kept[name] = self._clock() + FACTOR * cost_s, found
            return found
