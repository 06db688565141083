"""Results that are kept, as many as have room in a number of bytes.

A number of entries alone bounds no memory, for whoever asks chooses their lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from threading import Lock
from typing import Protocol, TypeVar, cast

from cachetools import LRUCache

T = TypeVar("T")

R = TypeVar("R", covariant=True)

ENTRY_BYTES = 700
"""How much memory an entry takes beside its key and its value."""


class KeptFunction(Protocol[R]):
    """A function of a text whose latest results are kept.

    Attributes:
        cache: pairs of texts and results, by text.
    """

    cache: LRUCache[str, object]

    def __call__(self, text: str, /) -> R: ...


def keep(most_bytes: int) -> Callable[[Callable[[str], T]], KeptFunction[T]]:
    """Keep the latest results of a function of a text, from any thread.

    >>> @keep(most_bytes=2_000)
    ... def double(text):
    ...     return text + text
    >>> double("a"), double("b" * 1_000) == "b" * 2_000
    ('aa', True)
    >>> list(double.cache)
    ['a']
    """

    def decorate(function: Callable[[str], T]) -> KeptFunction[T]:
        cache: LRUCache[str, tuple[str, T]] = LRUCache(
            most_bytes, getsizeof=lambda pair: ENTRY_BYTES + n_bytes_of(pair)
        )
        lock = Lock()

        @wraps(function)
        def recall(text: str) -> T:
            with lock:
                if text in cache:
                    return cache[text][1]
            pair = text, function(text)
            with lock, suppress(ValueError):  # larger than the whole cache
                cache[text] = pair
            return pair[1]

        recall.cache = cache  # type: ignore[attr-defined]
        return cast(KeptFunction[T], recall)

    return decorate


def n_bytes_of(value: object) -> int:
    """How much memory a value takes: texts, collections and instances of our classes.

    >>> n_bytes_of(("a" * 100, ["b" * 100])) > 300
    True
    """
    return _n_bytes(value, set())


def _n_bytes(value: object, seen: set[int]) -> int:
    if value is None or isinstance(value, type | bool) or id(value) in seen:
        return 0
    seen.add(id(value))
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        parts = list(value)
    elif hasattr(value, "__dict__"):
        # interpreters share the names of attributes, but not their table
        parts = [*vars(value).values()]
        return 300 + sum(_n_bytes(part, seen) for part in parts)
    return sys.getsizeof(value) + sum(_n_bytes(part, seen) for part in parts)
