"""Settings of the process that hold while any of its threads needs them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock


class SharedSetting:
    """A setting that the first of its users makes, and the last one takes back.

    Args:
        begin: makes the setting, and returns what takes it back.

    >>> def switch_on():
    ...     print("on")
    ...     return lambda: print("off")
    >>> light = SharedSetting(switch_on)
    >>> with light(), light():
    ...     print("bright")
    on
    bright
    off
    """

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._counting, self._n_users = Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._counting:
            # the first user makes the setting, inside of the lock: a second one must
            # not run without it
            if not self._n_users:
                self._end = self._begin()
            self._n_users += 1
        try:
            yield
        finally:
            with self._counting:
                self._n_users -= 1
                if not self._n_users:
                    self._end()


_are_frozen_already = Event()


def _freeze() -> Callable[[], None]:
    # A program that froze its own objects keeps them so. They are counted one by one,
    # which takes as long as a collection: therefore once.
    if _are_frozen_already.is_set() or gc.get_freeze_count():
        _are_frozen_already.set()
        return lambda: None
    gc.freeze()
    return gc.unfreeze


quick_collections = SharedSetting(_freeze)
"""Cycles are looked for among new objects alone.

Code generators make many, and a collection visits all objects of the process: a tenth
of a second where Loopy is loaded, again and again.
"""
