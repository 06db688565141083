"""Misses are counted in memory, and written from time to time, many at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool

from feinsum.canonical import WorkloadKey
from feinsum.errors import StoreError
from feinsum.records import Miss, is_text_of

__all__ = ["LONGEST_TEXT", "MissCounter"]

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""How many different misses wait at most; more are not counted."""

LONGEST_TEXT = 20_000
"""Most characters of the text of an einsum that is kept."""

Write = Callable[[Mapping[Miss, int], Mapping[WorkloadKey, str]], None]


class MissCounter:
    """Counts misses; used from one event loop.

    Args:
        write: adds counts, and the texts of workloads, to the database.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._counts: Counter[Miss] = Counter()
        self._texts: dict[WorkloadKey, str] = {}

    def count(self, workload: str, device: str, text: str | None) -> None:
        """Count a miss; a text that is not the workload's is not kept."""
        key = WorkloadKey(workload)
        miss = Miss(key, device)
        if miss not in self._counts and len(self._counts) >= MOST_WAITING:
            return
        self._counts[miss] += 1
        if text and len(text) <= LONGEST_TEXT and is_text_of(text, workload):
            self._texts[key] = text

    async def flush(self) -> None:
        """Write what was counted; what cannot be written is dropped and logged."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        texts, self._texts = self._texts, {}
        try:
            await run_in_threadpool(self._write, counts, texts)
        except StoreError as error:
            logger.warning("%s misses were not counted: %s", counts.total(), error)

    async def flush_forever(self, every_s: float) -> None:
        """Write every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.flush()
