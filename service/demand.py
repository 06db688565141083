"""Misses: counted in memory, and written every few seconds, many at once.

A write for each miss would make a look-up as slow as a commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from sys import getsizeof

from starlette.concurrency import run_in_threadpool

from feinsum.canonical import WorkloadKey
from feinsum.db.server.demand import DemandRequest
from feinsum.errors import StoreError
from feinsum.records import Miss, is_text_of
from feinsum.service.texts import has_secret, is_storable

logger = logging.getLogger(__name__)

MAX_BYTES = 32 * 2**20
"""Memory of unwritten misses, with the texts of workloads; more are not counted.
"""

MISS_BYTES = 800
"""Memory of one miss, without its names."""

MAX_OF_CALLER = 1_000
"""Different unwritten misses of one caller."""

MAX_TEXT = 20_000
"""Characters of the text of an einsum that is kept."""

Write = Callable[[Mapping[DemandRequest, int], Mapping[WorkloadKey, str]], None]


class MissCounter:
    """Counts misses; used from one event loop.

    Args:
        write: adds counts, and the texts of workloads, to the database.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._forget()

    def _forget(self) -> None:
        self._counts: Counter[DemandRequest] = Counter()
        self._texts: dict[WorkloadKey, str] = {}
        self._of_caller: Counter[str] = Counter()
        self._n_bytes = 0

    def count(self, workload: str, device: str, text: str | None, caller: str) -> None:
        """Count a miss.

        Texts of other workloads are dropped, as is anything that looks like a key of
        the service.
        """
        if any(
            has_secret(name) or not is_storable(name) for name in (workload, device)
        ):
            return
        miss = DemandRequest(Miss(WorkloadKey(workload), device), caller)
        if miss not in self._counts:
            n_bytes = MISS_BYTES + sum(map(getsizeof, (workload, device, caller)))
            # one caller must not fill the memory that all have
            has_many = self._of_caller[caller] >= MAX_OF_CALLER
            if has_many or self._n_bytes + n_bytes > MAX_BYTES:
                return
            self._of_caller[caller] += 1
            self._n_bytes += n_bytes
        self._counts[miss] += 1
        # the text makes a workload tunable by others; the key alone does not
        if text and self._is_new_text(text, miss.miss.workload):
            self._n_bytes += getsizeof(text)
            self._texts[miss.miss.workload] = text

    def _is_new_text(self, text: str, workload: WorkloadKey) -> bool:
        if workload in self._texts or len(text) > MAX_TEXT:
            return False
        has_room = self._n_bytes + getsizeof(text) <= MAX_BYTES
        # the cheap check first: canonicalization takes a millisecond
        return has_room and is_text_of(text, workload)

    async def flush(self) -> None:
        """Write what was counted; what cannot be written is dropped and logged."""
        if not self._counts:
            return
        # taken before the write: what is counted meanwhile is written the next time
        counts, texts = self._counts, self._texts
        self._forget()
        try:
            await run_in_threadpool(self._write, counts, texts)
        # demand is a hint: losing some is better than a service that stops
        except StoreError as error:
            logger.warning("%s misses could not be counted: %s", counts.total(), error)

    async def flush_forever(self, every_s: float) -> None:
        """Write every so many seconds, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.flush()
