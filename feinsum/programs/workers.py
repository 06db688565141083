"""Threads that work on parts of arrays, while numpy has no need of the interpreter."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from feinsum.memory import remembered

T = TypeVar("T")


class Workers:
    """Threads by their number, kept for the next call: to start one takes as long as to
    read a megabyte. A forked process has none of those of its parent.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[int, int], ThreadPoolExecutor] = {}

    def pool(self, n_threads: int) -> ThreadPoolExecutor:
        key = os.getpid(), n_threads
        if key not in self._pools:
            pool = ThreadPoolExecutor(n_threads, "feinsum-program")
            return self._pools.setdefault(key, pool)
        return self._pools[key]


def run_each(run: Callable[[T], object], parts: Sequence[T], n_workers: int) -> None:
    """Run all parts, at most so many at a time, one of them in the calling thread.

    Nothing runs any more when it returns, nor when it raises the error of a part.

    >>> seen = []
    >>> run_each(seen.append, [1, 2, 3], n_workers=2)
    >>> sorted(seen)
    [1, 2, 3]
    """
    left = deque(parts)

    def work() -> None:
        while left:
            try:
                part = left.popleft()
            except IndexError:  # another thread took the last one
                return
            run(part)

    others = min(n_workers, len(left)) - 1
    if others < 1:
        work()
        return
    pool = remembered(Workers).pool(others)
    running = [pool.submit(work) for _ in range(others)]
    try:
        work()
    finally:
        wait(running)
    for done in running:
        done.result()
