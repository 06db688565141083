"""A bounded cache that threads share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values created on demand, one at a time; evicts the least recently used.

    >>> squares = BoundedCache(2)
    >>> [squares.get(n, lambda n=n: n * n) for n in (1, 2, 3)], len(squares)
    ([1, 4, 9], 2)
    """

    def __init__(self, bound: int) -> None:
        self._entries: LRUCache[K, V] = LRUCache(bound)
        # two locks: calls that are known do not wait for one that is being built
        self._using = RLock()
        # reentrant: what makes a value may ask for another one
        self._making = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; ``make`` runs once for all threads that request it."""
        value = self._known(key)
        if value is not None:
            return value
        with self._making:
            value = self._known(key)
            if value is None:
                value = make()
                self._keep(key, value)
        return value

    def values(self) -> list[V]:
        with self._using:
            return [*self._entries.values()]

    def clear(self) -> None:
        with self._using:
            self._entries.clear()

    def _known(self, key: K) -> V | None:
        with self._using:
            return self._entries.get(key)

    def _keep(self, key: K, value: V) -> None:
        with self._using:
            self._entries[key] = value
