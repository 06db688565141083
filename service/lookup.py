"""Look-ups: answers are made once, and kept until their facts change.

Whether anything changed in the database is asked at most every ``freshness_s``
seconds. While nothing did, a question whose answer is kept is answered in the event
loop, from a dictionary. All others wait for a thread that reads the database for as
many of them as there are then. Facts never change; so an answer that is kept from
before a change is as good as new if it was made of the facts that there are now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from sys import getsizeof
from typing import TypeAlias

from cachetools import LRUCache

from feinsum.db.server import Reader, Size
from feinsum.records import Device
from feinsum.service.answers import (
    MOST_READ,
    Answer,
    Wanted,
    answer_of,
    chosen_ids,
)

Question: TypeAlias = tuple[str, Wanted]
"""A workload, and for which device."""


QUESTION_BYTES = 800
"""How much memory an entry takes, without its names, its ids and its answer."""

ID_BYTES = 180
"""How much memory an id takes, with its place in a set."""

MANY_FACTS = 200
"""A workload with more facts is not read as a whole."""

MANY_BYTES = 2_000_000
"""Nor is one with longer documents; and no more is read at a time of several."""

UNTOLD = ""
"""In place of the ids of very many facts: such an answer is made anew after any commit.
"""

AT_ONCE = 200
"""How many questions are read at once at most, so that the first need not wait."""


@dataclass(frozen=True)
class Kept:
    """An answer, or None for a miss.

    Attributes:
        states: of all facts that it was made of.
        generation: of the database for which it is known to be true.
        n_bytes: how much memory it takes, with its question.
    """

    answer: Answer | None
    states: frozenset[str]
    generation: object = None
    n_bytes: int = 0


@dataclass
class Budget:
    """How many bytes of documents may still be read for a request.

    >>> budget = Budget(100)
    >>> list(budget.affordable({"a": Size(1, 90), "b": Size(1, 20), "c": Size(0, 0)}))
    ['a', 'c']
    >>> list(Budget(10).affordable({"a": Size(1, 90), "b": Size(1, 10)}))
    ['a']
    """

    n_bytes: int
    is_untouched: bool = True

    def affordable(self, sizes: Mapping[str, Size]) -> dict[str, Size]:
        """The workloads that may be read, which are paid for; the first one always."""
        found: dict[str, Size] = {}
        for workload, size in sizes.items():
            price = min(size.n_bytes, MOST_READ)
            if self.is_untouched or price <= self.n_bytes:
                found[workload] = size
                self.n_bytes = max(0, self.n_bytes - price)
                self.is_untouched &= not price
        return found


class Lookup:
    """Answers of one database; used from one event loop.

    Args:
        freshness_s: for how long the database is taken not to have changed.
        most_bytes: of answers that are kept; the one used longest ago goes first.
    """

    def __init__(self, reader: Reader, freshness_s: float, most_bytes: int) -> None:
        self._reader = reader
        self._freshness_s = freshness_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._kept: LRUCache[Question, Kept] = LRUCache(
            most_bytes, getsizeof=lambda kept: kept.n_bytes
        )
        self._generation: object = None
        self._devices: Mapping[str, Device] = {}
        self._fresh_until = 0.0
        self._check: asyncio.Task[None] | None = None
        self._waiting: dict[Question, asyncio.Future[Answer | None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def answer(self, question: Question) -> Answer | None:
        """The answer to one question; None for a miss.

        Raises:
            StoreUnavailableError: if the database cannot be read.
        """
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        if kept := self._fresh(question):
            return kept.answer
        return await self._queued(question)

    async def answers(
        self, questions: Sequence[Question], budget: Budget | None = None
    ) -> dict[Question, Answer | None]:
        """The same for many; without those that a budget has no bytes for."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        found = {q: kept.answer for q in questions if (kept := self._fresh(q))}
        missing = list(dict.fromkeys(q for q in questions if q not in found))
        if missing and budget is None:
            read = await asyncio.gather(*map(self._queued, missing))
            found.update(zip(missing, read, strict=True))
        elif missing:
            affordable = await self._read_now(missing, budget)
            found.update((q, kept.answer) for q, kept in affordable.items())
        return found

    async def refresh(self) -> None:
        """Ask the database whether it changed; many at once ask together.

        Raises:
            StoreUnavailableError: if it cannot be reached.
        """
        if self._check is None:
            self._check = asyncio.create_task(self._ask())
        # one that is cancelled must not cancel the question of the others
        await asyncio.shield(self._check)

    def expire(self) -> None:
        """Ask before the next answer, for something was written just now."""
        self._fresh_until = 0.0

    def close(self) -> None:
        """End the thread and its connections."""
        self._thread.shutdown()
        self._reader.close()

    async def _ask(self) -> None:
        # before the question, whose answer may miss what is committed meanwhile
        asked_at = time.monotonic()
        loop, thread = asyncio.get_running_loop(), self._thread
        try:
            generation = await loop.run_in_executor(thread, self._reader.generation)
            if generation != self._generation:
                devices = await loop.run_in_executor(thread, self._reader.devices)
                if devices != self._devices:  # an answer may depend on each of them
                    self._kept.clear()
                self._generation, self._devices = generation, devices
            self._fresh_until = asked_at + self._freshness_s
        finally:
            self._check = None

    def _fresh(self, question: Question) -> Kept | None:
        """The cached answer, if it is known to be true."""
        kept = self._kept.get(question)
        return kept if kept and kept.generation == self._generation else None

    def _queued(self, question: Question) -> asyncio.Future[Answer | None]:
        """The answer once it was read; equal questions are read once."""
        if question not in self._waiting:
            self._waiting[question] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
        return self._waiting[question]

    async def _read_all(self) -> None:
        """Answer what waits, until nothing does."""
        try:
            while part := list(self._waiting)[:AT_ONCE]:
                futures = {question: self._waiting.pop(question) for question in part}
                try:
                    found = await self._read_now(part)
                except Exception as error:  # noqa: BLE001  # it is who asked that fails
                    _fail(futures.values(), error)
                    continue
                for question, future in futures.items():
                    if not future.cancelled():
                        future.set_result(found[question].answer)
        finally:
            self._reading = None

    async def _read_now(
        self, questions: Sequence[Question], budget: Budget | None = None
    ) -> dict[Question, Kept]:
        # before the facts are read: a commit in between makes the answers seem older
        # than they are, never newer
        generation, devices = self._generation, self._devices
        known = {q: self._kept[q] for q in questions if q in self._kept}
        read = partial(_read, self._reader, questions, known, devices, budget)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, read)
        # otherwise an answer may be for devices that have changed
        if devices == self._devices:
            self._keep(found, generation)
        return found

    def _keep(self, found: Mapping[Question, Kept], generation: object) -> None:
        for question, kept in found.items():
            n_bytes = _n_bytes(question, kept)
            if n_bytes <= self._kept.maxsize:
                self._kept[question] = Kept(
                    kept.answer, kept.states, generation, n_bytes
                )


def _n_bytes(question: Question, kept: Kept) -> int:
    """How much memory a question and its answer take."""
    workload, wanted = question
    names = workload, wanted.device, wanted.architecture
    n_bytes = QUESTION_BYTES + sum(map(getsizeof, names)) + ID_BYTES * len(kept.states)
    return n_bytes + (kept.answer.n_bytes if kept.answer else 0)


def _read(
    reader: Reader,
    questions: Sequence[Question],
    known: Mapping[Question, Kept],
    devices: Mapping[str, Device],
    budget: Budget | None = None,
) -> dict[Question, Kept]:
    """The current answers; known ones stay if the facts are the same.

    Answers beyond the bytes of a budget are left out.

    Few documents are in memory at a time: those of some workloads, or a choice of those
    of one that has very many.
    """
    told = {q: kept for q, kept in known.items() if UNTOLD not in kept.states}
    states = reader.states([workload for workload, _ in told])
    found = {q: kept for q, kept in told.items() if kept.states == states[q[0]]}
    changed: dict[str, list[Wanted]] = {}
    for workload, wanted in questions:
        if (workload, wanted) not in found:
            changed.setdefault(workload, []).append(wanted)
    sizes = reader.sizes(list(changed))
    if budget is not None:
        sizes = budget.affordable(sizes)
    for part in _parts(sizes):
        for workload, facts in reader.facts(part).items():
            for wanted in changed[workload]:
                answer = answer_of(workload, facts, wanted, devices)
                made_of = frozenset(fact.state for fact in facts)
                found[workload, wanted] = Kept(answer, made_of)
    for workload in (w for w, size in sizes.items() if _is_large(size)):
        summaries = reader.summaries(workload)
        for wanted in changed[workload]:
            chosen = reader.documents(chosen_ids(summaries, wanted, devices))
            answer = answer_of(workload, chosen, wanted, devices)
            found[workload, wanted] = Kept(answer, frozenset({UNTOLD}))
    return found


def _is_large(size: Size) -> bool:
    return size.n_facts > MANY_FACTS or size.n_bytes > MANY_BYTES


def _parts(sizes: Mapping[str, Size]) -> Iterator[list[str]]:
    """Workloads that are read as a whole, as many at a time as may be in memory."""
    part: list[str] = []
    n_bytes = 0
    for workload, size in sizes.items():
        if _is_large(size):
            continue
        if part and n_bytes + size.n_bytes > MANY_BYTES:
            yield part
            part, n_bytes = [], 0
        part.append(workload)
        n_bytes += size.n_bytes
    if part:
        yield part


def _fail(futures: Iterable[asyncio.Future[Answer | None]], error: Exception) -> None:
    for future in futures:
        if not future.cancelled():
            future.set_exception(error)
