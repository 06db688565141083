"""Look-ups: answers are made once, and kept until the database changes.

Whether it changed is asked at most every ``freshness_s`` seconds. A question
whose answer is kept is answered in the event loop, from a dictionary. All others
wait for a thread that reads the database for as many of them as there are then.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from feinsum.db import Reader
from feinsum.records import Device
from feinsum.service.answers import Answer, Wanted, answer_of

__all__ = ["Lookup", "Question"]

Question: TypeAlias = tuple[str, Wanted]
"""A workload, and for which device."""

Answers: TypeAlias = dict[Question, Answer | None]

MISS_BYTES = 300
"""How much memory a question takes that has no answer."""

AT_ONCE = 200
"""How many questions are read at once at most, so that the first need not wait."""


class Lookup:
    """Answers of one database; used from one event loop.

    Args:
        freshness_s: for how long the database is taken not to have changed.
        most_bytes: of answers that are kept; the one used longest ago goes first.
    """

    def __init__(self, reader: Reader, freshness_s: float, most_bytes: int) -> None:
        self._reader = reader
        self._freshness_s = freshness_s
        self._most_bytes = most_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lookup")
        self._kept: OrderedDict[Question, Answer | None] = OrderedDict()
        self._n_bytes = 0
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
        if question in self._kept:
            self._kept.move_to_end(question)
            return self._kept[question]
        return await self._queued(question)

    async def answers(self, questions: Sequence[Question]) -> list[Answer | None]:
        """The same for many, in their order."""
        if time.monotonic() >= self._fresh_until:
            await self.refresh()
        kept = {q: self._kept[q] for q in questions if q in self._kept}
        missing = list(dict.fromkeys(q for q in questions if q not in kept))
        if missing:
            found = await asyncio.gather(*map(self._queued, missing))
            kept.update(zip(missing, found, strict=True))
        return [kept[question] for question in questions]

    async def refresh(self) -> None:
        """Ask the database whether it changed; many at once ask together.

        Raises:
            StoreUnavailableError: if it cannot be reached.
        """
        if self._check is None:
            self._check = asyncio.create_task(self._ask())
        await asyncio.shield(self._check)

    def expire(self) -> None:
        """Ask before the next answer, for something was written just now."""
        self._fresh_until = 0.0

    def close(self) -> None:
        """End the thread and its connections."""
        self._thread.shutdown()
        self._reader.close()

    async def _ask(self) -> None:
        asked_at = time.monotonic()
        loop, thread = asyncio.get_running_loop(), self._thread
        try:
            generation = await loop.run_in_executor(thread, self._reader.generation)
            if generation != self._generation:
                devices = await loop.run_in_executor(thread, self._reader.devices)
                self._kept.clear()
                self._n_bytes = 0
                self._generation, self._devices = generation, devices
            self._fresh_until = asked_at + self._freshness_s
        finally:
            self._check = None

    def _queued(self, question: Question) -> asyncio.Future[Answer | None]:
        """The answer once it was read; equal questions are read once."""
        if question not in self._waiting:
            self._waiting[question] = asyncio.get_running_loop().create_future()
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_all())
        return self._waiting[question]

    async def _read_all(self) -> None:
        """Answer what waits, until nothing does."""
        loop = asyncio.get_running_loop()
        try:
            while part := list(self._waiting)[:AT_ONCE]:
                generation, devices = self._generation, self._devices
                futures = {question: self._waiting.pop(question) for question in part}
                read = partial(_read, self._reader, part, devices)
                try:
                    found = await loop.run_in_executor(self._thread, read)
                except Exception as error:  # noqa: BLE001  # it is who asked that fails
                    _fail(futures.values(), error)
                    continue
                if generation == self._generation:
                    self._keep(found)
                for question, future in futures.items():
                    if not future.cancelled():
                        future.set_result(found[question])
        finally:
            self._reading = None

    def _keep(self, answers: Answers) -> None:
        for question, answer in answers.items():
            if question not in self._kept:
                self._kept[question] = answer
                self._n_bytes += _n_bytes(answer)
        while self._n_bytes > self._most_bytes:
            _, gone = self._kept.popitem(last=False)
            self._n_bytes -= _n_bytes(gone)


def _read(
    reader: Reader, questions: Sequence[Question], devices: Mapping[str, Device]
) -> Answers:
    facts = reader.facts([workload for workload, _ in questions])
    return {
        (workload, wanted): answer_of(workload, facts[workload], wanted, devices)
        for workload, wanted in questions
    }


def _fail(futures: Iterable[asyncio.Future[Answer | None]], error: Exception) -> None:
    for future in futures:
        if not future.cancelled():
            future.set_exception(error)


def _n_bytes(answer: Answer | None) -> int:
    return MISS_BYTES + (answer.n_bytes if answer else 0)
