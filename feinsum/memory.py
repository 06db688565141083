"""The memory of a process: one object, in which every package has a part of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """Parts by their type, each made when it is first asked for.

    >>> class Seen(set[str]):
    ...     '''What was seen.'''
    >>> with fresh_memory():
    ...     remembered(Seen).add("a")
    ...     with fresh_memory():
    ...         print(sorted(remembered(Seen)))
    ...     print(sorted(remembered(Seen)))
    []
    ['a']
    """

    def __init__(self) -> None:
        self._parts: dict[type[Any], Any] = {}
        self._making = RLock()

    def part(self, kind: type[T]) -> T:
        """The part of that type; one for all threads."""
        try:
            found: T = self._parts[kind]
        except KeyError:
            with self._making:
                found = self._parts.setdefault(kind, kind())
        return found

    def drop(self, kind: type[Any]) -> None:
        self._making = RLock()  # in a forked child, a lost thread may hold it
        self._parts.pop(kind, None)


_current = Memory()


def remembered(kind: type[T]) -> T:
    """The part of that type that this process has."""
    return _current.part(kind)


def forget(kind: type[Any]) -> None:
    """Drop the part of that type: it is made anew when it is next asked for."""
    _current.drop(kind)


def use_memory(memory: Memory) -> Memory:
    """Remember there from now on; the memory until now."""
    global _current
    before, _current = _current, memory
    return before


@contextmanager
def fresh_memory() -> Iterator[None]:
    """Be a process that has just begun, as far as its memory goes."""
    before = use_memory(Memory())
    try:
        yield
    finally:
        use_memory(before)
