"""The memory of a process: one object with a part for every package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """Parts by their type, each created at its first request.

    >>> class Seen(set[str]):
    ...     '''What was seen.'''
    >>> with use_fresh_memory():
    ...     get_remembered(Seen).add("a")
    ...     with use_fresh_memory():
    ...         print(sorted(get_remembered(Seen)))
    ...     print(sorted(get_remembered(Seen)))
    []
    ['a']
    """

    def __init__(self) -> None:
        self._parts: dict[type[Any], Any] = {}
        self._making = RLock()

    def part(self, kind: type[T]) -> T:
        """Return the part of that type; one for all threads."""
        try:
            part: T = self._parts[kind]
        # lock only to create a part: every call takes this path
        except KeyError:
            with self._making:
                part = self._parts.setdefault(kind, kind())
        return part

    def drop(self, kind: type[Any]) -> None:
        # in a forked child, a lost thread may hold the old one
        self._making = RLock()
        self._parts.pop(kind, None)


_current = Memory()


def get_remembered(kind: type[T]) -> T:
    """Return the part of that type that this process has."""
    return _current.part(kind)


def forget(kind: type[Any]) -> None:
    """Drop the part of that type; the next access makes it anew."""
    _current.drop(kind)


def use_memory(memory: Memory) -> Memory:
    """Make this the memory of the process, and return the previous one."""
    global _current
    previous, _current = _current, memory
    return previous


@contextmanager
def use_fresh_memory() -> Iterator[None]:
    """Run the body with an empty memory, as in a new process."""
    previous = use_memory(Memory())
    try:
        yield
    finally:
        use_memory(previous)
