"""Look-ups: answers are composed once, and cached until their facts change.

    query -> cached and current? -> answer                  (event loop, a dictionary)
                   | no
                   +-> queue -> thread: states of the facts -> same: the cached answer
                                                            -> others: compose anew

The database is polled for changes at most every ``freshness_s`` seconds. Queries
without a current answer wait for one thread, which reads the database for as many of
them as wait then. Facts never change, so an answer from before a change of the database
is current again if it was composed of the facts that there are now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from sys import getsizeof
from typing import TypeAlias

from cachetools import LRUCache

from feinsum.db.server.reader import Reader, Size, States
from feinsum.records import Device
from feinsum.service.answers import (
    MAX_READ_BYTES,
    Answer,
    DeviceQuery,
    choose_ids,
    make_answer,
)

Query: TypeAlias = tuple[str, DeviceQuery]
"""The key of a workload, and the device."""


QUERY_BYTES = 800
"""Memory of an entry, without its names, its ids and its answer."""

STATE_BYTES = 240
"""Memory of the state of a fact, as an element of a set."""

MANY_FACTS = 200
"""A workload with more facts is not read whole."""

MANY_BYTES = 2_000_000
"""Nor is a workload with longer documents; several workloads read at once are no
longer."""

MAX_QUERIES = 200
"""Queries that are read at once: the first of them waits for the last."""


@dataclass(frozen=True)
class CachedAnswer:
    """An answer, or None for a miss.

    Attributes:
        states: of all facts that it was composed of; None for very many: such an
            answer is composed anew after any commit.
        generation: the generation of the database for which it is current.
        n_bytes: memory, with its query.
    """

    answer: Answer | None
    states: States | None
    generation: object = None
    n_bytes: int = 0


@dataclass
class ReadBudget:
    """How many bytes of documents may still be read for a request.

    >>> budget = ReadBudget(100)
    >>> list(budget.select_affordable({"a": Size(1, 90), "b": Size(1, 20),
    ...     "c": Size(0, 0)}))
    ['a', 'c']
    >>> list(ReadBudget(10).select_affordable({"a": Size(1, 90), "b": Size(1, 10)}))
    ['a']
    """

    n_bytes: float = inf
    is_untouched: bool = True

    def select_affordable(self, sizes: Mapping[str, Size]) -> dict[str, Size]:
        """Return the workloads that may be read; the first one always."""
        chosen: dict[str, Size] = {}
        for workload, size in sizes.items():
            n_read = min(size.n_bytes, MAX_READ_BYTES)
            if self.is_untouched or n_read <= self.n_bytes:
                chosen[workload] = size
                self.n_bytes = max(0, self.n_bytes - n_read)
                self.is_untouched &= not n_read
        return chosen


class Lookup:
    """Answers of one database; used from one event loop.

    Args:
        freshness_s: how long the database is assumed not to have changed.
        max_bytes: memory of cached answers; the one used longest ago goes first.
    """

    def __init__(self, reader: Reader, freshness_s: float, max_bytes: int) -> None:
        self._reader = reader
        self._freshness_s = freshness_s
        # one thread and one connection: queries that wait meanwhile are read together
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._cache: LRUCache[Query, CachedAnswer] = LRUCache(
            max_bytes, getsizeof=lambda cached: cached.n_bytes
        )
        self._generation: object = None
        self._devices: Mapping[str, Device] = {}
        self._fresh_until = 0.0
        self._checking: asyncio.Task[None] | None = None
        # clients of one build send the same at the same time: equal queries share a
        # future
        self._waiting: dict[Query, asyncio.Future[Answer | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def answer(self, query: Query) -> Answer | None:
        """Return the answer to one query; None for a miss.

        Raises:
            StoreUnavailableError: if the database cannot be read.
        """
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        if cached := self._get_current(query):
            return cached.answer
        return await self._enqueue(query)

    async def answers(
        self, queries: Sequence[Query], budget: ReadBudget
    ) -> dict[Query, Answer | None]:
        """Return the answers to many queries, as far as a budget has bytes for them."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        answers = {
            q: cached.answer for q in queries if (cached := self._get_current(q))
        }
        if missing := [q for q in queries if q not in answers]:
            read = await self._read_now(missing, budget)
            answers.update((query, cached.answer) for query, cached in read.items())
        return answers

    async def refresh(self) -> None:
        """Check whether the database changed, once for all that wait for it.

        Raises:
            StoreUnavailableError: if it cannot be reached.
        """
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_changes())
        # a caller that is cancelled must not cancel the check of the others
        await asyncio.shield(self._checking)

    def expire(self) -> None:
        """Check before the next answer: something was written just now."""
        self._fresh_until = 0.0

    def close(self) -> None:
        """End the thread and close its connections."""
        self._thread.shutdown()
        self._reader.close()

    async def _check_changes(self) -> None:
        # the time before the check, which may miss what is committed meanwhile
        checked_at = time.monotonic()
        loop, thread = asyncio.get_running_loop(), self._thread
        try:
            generation = await loop.run_in_executor(thread, self._reader.generation)
            # the devices are read only after a change: they are all that an answer
            # needs besides facts
            if generation != self._generation:
                devices = await loop.run_in_executor(thread, self._reader.devices)
                # any answer may depend on any device
                if devices != self._devices:
                    self._cache.clear()
                self._generation, self._devices = generation, devices
            self._fresh_until = checked_at + self._freshness_s
        finally:
            self._checking = None

    def _get_current(self, query: Query) -> CachedAnswer | None:
        """Return the cached answer, if nothing changed since."""
        cached = self._cache.get(query)
        return cached if cached and cached.generation == self._generation else None

    def _enqueue(self, query: Query) -> asyncio.Future[Answer | None]:
        """Return the answer once it was read; equal queries are read once."""
        if query not in self._waiting:
            self._waiting[query] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
        return self._waiting[query]

    async def _read_all(self) -> None:
        """Answer waiting queries until none is left."""
        try:
            while batch := list(self._waiting)[:MAX_QUERIES]:
                futures = {query: self._waiting.pop(query) for query in batch}
                try:
                    answers = await self._read_now(batch, ReadBudget())
                except Exception as error:  # noqa: BLE001  # raised where it is awaited
                    for future in futures.values():
                        if not future.cancelled():
                            future.set_exception(error)
                    continue
                for query, future in futures.items():
                    if not future.cancelled():
                        future.set_result(answers[query].answer)
        finally:
            self._reading = None

    async def _read_now(
        self, queries: Sequence[Query], budget: ReadBudget
    ) -> dict[Query, CachedAnswer]:
        # before the facts are read: a commit in between makes the answers seem older
        # than they are, never newer
        generation, devices = self._generation, self._devices
        cached = {q: self._cache[q] for q in queries if q in self._cache}
        read = partial(_read, self._reader, queries, cached, devices, budget)
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._thread, read)
        # otherwise an answer may be for devices that have changed
        if devices == self._devices:
            self._store(answers, generation)
        return answers

    def _store(self, answers: Mapping[Query, CachedAnswer], generation: object) -> None:
        for query, cached in answers.items():
            n_bytes = _estimate_bytes(query, cached)
            # cachetools raises for an entry that is larger than the cache
            if n_bytes <= self._cache.maxsize:
                self._cache[query] = CachedAnswer(
                    cached.answer, cached.states, generation, n_bytes
                )


def _estimate_bytes(query: Query, cached: CachedAnswer) -> int:
    """Return how much memory a query and its answer take."""
    workload, target = query
    names = workload, target.device, target.architecture
    n_bytes = QUERY_BYTES + sum(map(getsizeof, names))
    n_bytes += STATE_BYTES * len(cached.states or ())
    return n_bytes + (cached.answer.n_bytes if cached.answer else 0)


def _read(
    reader: Reader,
    queries: Sequence[Query],
    cached: Mapping[Query, CachedAnswer],
    devices: Mapping[str, Device],
    budget: ReadBudget,
) -> dict[Query, CachedAnswer]:
    """Return the current answers; cached ones stay if the facts are the same.

    Answers beyond the bytes of a budget are left out. Few documents are in memory at a
    time: those of some workloads, or a choice of those of one that has very many.
    """
    comparable = {q: c for q, c in cached.items() if c.states is not None}
    states = reader.states([workload for workload, _ in comparable])
    answers = {q: c for q, c in comparable.items() if c.states == states[q[0]]}
    changed: dict[str, list[DeviceQuery]] = {}
    for workload, target in queries:
        if (workload, target) not in answers:
            changed.setdefault(workload, []).append(target)
    sizes = budget.select_affordable(reader.sizes(list(changed)))
    for batch in _split_into_batches(sizes):
        for workload, facts in reader.facts(batch).items():
            records = [fact.record for fact in facts]
            states_read = frozenset((r.id, r.is_trusted) for r in records)
            for target in changed[workload]:
                answer = make_answer(workload, facts, target, devices)
                answers[workload, target] = CachedAnswer(answer, states_read)
    # of very many facts, summaries choose which documents are read
    for workload in (w for w, size in sizes.items() if _is_large(size)):
        summaries = reader.summaries(workload)
        for target in changed[workload]:
            chosen = reader.documents(choose_ids(summaries, target, devices))
            answer = make_answer(workload, chosen, target, devices)
            answers[workload, target] = CachedAnswer(answer, None)
    return answers


def _is_large(size: Size) -> bool:
    return size.n_facts > MANY_FACTS or size.n_bytes > MANY_BYTES


def _split_into_batches(sizes: Mapping[str, Size]) -> Iterator[list[str]]:
    """Yield the workloads to read whole, as many at a time as memory allows."""
    batch: list[str] = []
    n_bytes = 0
    for workload, size in sizes.items():
        if _is_large(size):
            continue
        if batch and n_bytes + size.n_bytes > MANY_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append(workload)
        n_bytes += size.n_bytes
    if batch:
        yield batch
