"""Cached answers of a service: in this process, and on disk for all others.

The disk has the text of each record, which is read and checked like a response.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

from cachetools import LRUCache

from feinsum.cache import DiskCache, default_cache
from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address
from feinsum.db.remote.best import BestAnswer
from feinsum.errors import InvalidRecordError
from feinsum.memory import remembered
from feinsum.records import LookUp, TuningRecord, from_json, to_json, untrusted

MAX_IN_MEMORY = 2000
"""How many answers a process holds; the least recently used one is dropped."""


@dataclass(frozen=True)
class AgedAnswer:
    """A cached answer and its time.

    Attributes:
        records: none for a miss.
        at: seconds since the epoch.
        max_age_s: for how long no new request is needed.
        etag: its ETag; may be empty.
    """

    records: tuple[TuningRecord, ...]
    at: float
    max_age_s: float
    etag: str = ""

    @property
    def is_fresh(self) -> bool:
        # an answer from the future means that the clock was set back since
        return 0 <= time.time() - self.at < self.max_age_s


class _Answers:
    """The answers in the memory of a process; its threads may look up at once."""

    def __init__(self) -> None:
        self._answers: LRUCache[str, AgedAnswer] = LRUCache(MAX_IN_MEMORY)
        self._lock = Lock()

    def get(self, name: str) -> AgedAnswer | None:
        with self._lock:
            return self._answers.get(name)

    def put(self, name: str, answer: AgedAnswer) -> None:
        with self._lock:
            self._answers[name] = answer


class _Invalidated(dict[str, float]):
    """Times at which the answers of services were invalidated in this process."""


class AnswerCache:
    """The answers of one service for one device and policy."""

    def __init__(self, address: Address, look_up: LookUp) -> None:
        self._address = address
        device = look_up.device.id if look_up.device else ""
        self._request = ("remote", str(address), device, look_up.policy)
        self._cache: DiskCache | None = default_cache()

    def read(self, workload: WorkloadKey) -> AgedAnswer | None:
        """Return the cached answer about a workload, however old.

        One from another process counts if it is fresher than that of this process.
        """
        name = self._name(workload)
        answers = remembered(_Answers)
        cached = answers.get(name)
        # The disk is read only if memory has no fresh answer.
        if cached is None or not cached.is_fresh:
            content = self._cache.read(name) if self._cache else None
            on_disk = _from_bytes(content, workload) if content else None
            if on_disk and (cached is None or on_disk.at > cached.at):
                cached = on_disk
        if cached is None or cached.at <= self._invalid_until:
            return None
        answers.put(name, cached)
        return cached

    def store(
        self,
        answers: Iterable[tuple[WorkloadKey, BestAnswer]],
        old: Mapping[WorkloadKey, AgedAnswer],
    ) -> dict[WorkloadKey, AgedAnswer]:
        """Cache each answer as it arrives, and return all of them.

        Args:
            old: the earlier answers, for those that are unchanged.
        """
        stored: dict[WorkloadKey, AgedAnswer] = {}
        for workload, answer in answers:
            records = old[workload].records if answer.is_unchanged else answer.records
            cached = AgedAnswer(records, time.time(), answer.max_age_s, answer.etag)
            name = self._name(workload)
            remembered(_Answers).put(name, cached)
            if self._cache is not None:
                self._cache.write(name, _to_bytes(cached))
            stored[workload] = cached
        return stored

    @cached_property
    def _invalid_until(self) -> float:
        """Answers of the service from before this time are not used."""
        name = _mark(self._address)
        content = self._cache.read(name) if self._cache else None
        return max(remembered(_Invalidated).get(name, 0.0), _time_of(content))

    def _name(self, workload: WorkloadKey) -> str:
        request = "\0".join((*self._request, workload))
        return hashlib.sha256(request.encode()).hexdigest()


def forget_answers(address: Address) -> None:
    """Invalidate all cached answers, in all processes of the user."""
    name, now = _mark(address), time.time()
    remembered(_Invalidated)[name] = now
    if cache := default_cache():
        cache.write(name, repr(now).encode())


def _mark(address: Address) -> str:
    return hashlib.sha256(f"forgotten\0{address}".encode()).hexdigest()


def _time_of(content: bytes | None) -> float:
    try:
        return float(content or 0)
    except ValueError:
        return 0.0


def _to_bytes(answer: AgedAnswer) -> bytes:
    # Trust is no part of a record, so the head of the entry has it.
    marked = [record.id for record in answer.records if not record.is_trusted]
    head = {
        "at": answer.at,
        "max_age_s": answer.max_age_s,
        "etag": answer.etag,
        "untrusted": marked,
    }
    return "\n".join([json.dumps(head), *map(to_json, answer.records)]).encode()


def _from_bytes(content: bytes, workload: WorkloadKey) -> AgedAnswer | None:
    """Invert :func:`_to_bytes`; None for anything else."""
    try:
        head, *lines = content.decode().split("\n")
        fields = json.loads(head)
        at, max_age_s = float(fields["at"]), float(fields["max_age_s"])
        marked = frozenset(fields.get("untrusted", ()))
        read = (from_json(TuningRecord, line) for line in lines)
        records = tuple(untrusted(r) if marked and r.id in marked else r for r in read)
    except (InvalidRecordError, KeyError, TypeError, ValueError, RecursionError):
        return None
    # An entry under a wrong name: the cache is a folder that others may write.
    if any(record.workload != workload for record in records):
        return None
    return AgedAnswer(records, at, max_age_s, str(fields.get("etag", "")))
