"""Misses are counted in memory, and written from time to time, many at once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from sys import getsizeof

from starlette.concurrency import run_in_threadpool

from feinsum.canonical import WorkloadKey
from feinsum.db.server import DemandRequest
from feinsum.errors import StoreError
from feinsum.records import Miss, is_text_of
from feinsum.service.texts import has_secret, is_storable

logger = logging.getLogger(__name__)

MOST_BYTES = 32 * 2**20
"""How much memory waiting misses take at most, with the texts of their workloads; more
are not counted."""

MISS_BYTES = 800
"""How much one takes, without its names."""

MOST_OF_CALLER = 1_000
"""How many of one caller."""

LONGEST_TEXT = 20_000
"""Most characters of the text of an einsum that is kept."""

Write = Callable[[Mapping[DemandRequest, int], Mapping[WorkloadKey, str]], None]


class MissCounter:
    """Counts misses; used from one event loop.

    Args:
        write: adds counts, and the texts of workloads, to the database.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._forget()

    def count(self, workload: str, device: str, text: str | None, caller: str) -> None:
        """Count a miss.

        A text that is not the workload's is not kept, and nothing that looks like a
        key of the service.
        """
        asked = DemandRequest(Miss(WorkloadKey(workload), device), caller)
        if any(
            has_secret(part) or not is_storable(part) for part in (workload, device)
        ):
            return
        if asked not in self._counts:
            n_bytes = MISS_BYTES + sum(map(getsizeof, (workload, device, caller)))
            is_many = self._of_caller[caller] >= MOST_OF_CALLER
            if is_many or not self._has_room(n_bytes):
                return
            self._of_caller[caller] += 1
            self._n_bytes += n_bytes
        self._counts[asked] += 1
        if text and self._is_kept(text, workload):
            self._n_bytes += getsizeof(text)
            self._texts[asked.miss.workload] = text

    def _has_room(self, n_bytes: int) -> bool:
        return self._n_bytes + n_bytes <= MOST_BYTES

    def _is_kept(self, text: str, workload: str) -> bool:
        if workload in self._texts or len(text) > LONGEST_TEXT:
            return False
        return self._has_room(getsizeof(text)) and is_text_of(text, workload)

    def _forget(self) -> None:
        self._counts: Counter[DemandRequest] = Counter()
        self._texts: dict[WorkloadKey, str] = {}
        self._of_caller: Counter[str] = Counter()
        self._n_bytes = 0

    async def flush(self) -> None:
        """Write what was counted; what cannot be written is dropped and logged."""
        if not self._counts:
            return
        # taken before the write: what is counted meanwhile is written the next time
        counts, texts = self._counts, self._texts
        self._forget()
        try:
            await run_in_threadpool(self._write, counts, texts)
        except StoreError as error:
            logger.warning("%s misses could not be counted: %s", counts.total(), error)

    async def flush_forever(self, every_s: float) -> None:
        """Write every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.flush()
