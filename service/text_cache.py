"""Functions of texts whose latest results are cached, within a number of bytes.

A number of entries alone bounds no memory, for callers choose the lengths of texts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from threading import Lock
from typing import Protocol, TypeVar, cast

from cachetools import LRUCache

T = TypeVar("T")

R = TypeVar("R", covariant=True)

ENTRY_BYTES = 700
"""Memory of an entry beside its key and its value."""

BYTES_PER_CHARACTER = 8
"""Memory of a text and its result for each character of their ``repr``: characters of
four bytes, and objects of 50 bytes and more for fields of few characters."""


class CachedFunction(Protocol[R]):
    """A function of a text whose latest results are cached.

    Attributes:
        cache: pairs of texts and results, by text.
    """

    cache: LRUCache[str, object]

    def __call__(self, text: str, /) -> R: ...


def cache_by_bytes(
    max_bytes: int,
) -> Callable[[Callable[[str], T]], CachedFunction[T]]:
    """Cache the latest results of a function of a text, from any thread.

    >>> @cache_by_bytes(2_000)
    ... def double(text):
    ...     return text + text
    >>> double("a"), double("b" * 1_000) == "b" * 2_000
    ('aa', True)
    >>> list(double.cache)
    ['a']
    """

    def decorate(function: Callable[[str], T]) -> CachedFunction[T]:
        cache: LRUCache[str, tuple[str, T]] = LRUCache(max_bytes, getsizeof=n_bytes_of)
        lock = Lock()

        @wraps(function)
        def recall(text: str) -> T:
            with lock:
                if text in cache:
                    return cache[text][1]
            # outside the lock: two threads may compute the same, none waits for another
            pair = text, function(text)
            with lock, suppress(ValueError):  # larger than the whole cache
                cache[text] = pair
            return pair[1]

        recall.cache = cache  # type: ignore[attr-defined]
        return cast(CachedFunction[T], recall)

    return decorate


def n_bytes_of(entry: object) -> int:
    """About how much memory an entry takes, at most."""
    return ENTRY_BYTES + BYTES_PER_CHARACTER * len(repr(entry))
