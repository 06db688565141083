"""Settings of the process that last while any of its threads needs them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock


class SharedSetting:
    """A setting that its first user applies and its last user reverts.

    Args:
        begin: applies the setting, and returns the function that reverts it.

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
            # the first user applies the setting inside the lock: a second one must not
            # run without it
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
    # Objects that the program froze stay frozen. Counting them takes as long as a
    # collection, so it is done once.
    if _are_frozen_already.is_set() or gc.get_freeze_count():
        _are_frozen_already.set()
        return lambda: None
    gc.freeze()
    return gc.unfreeze


quick_collections = SharedSetting(_freeze)
"""Restricts garbage collections to new objects.

Code generators create many objects, and each collection visits all objects of the
process: a tenth of a second once Loopy is loaded.
"""
