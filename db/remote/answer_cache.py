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

MOST_IN_MEMORY = 2000
"""How many answers a process remembers; the one used longest ago goes first."""


@dataclass(frozen=True)
class CachedAnswer:
    """A cached answer and its time.

    Attributes:
        records: none for a miss.
        at: seconds since the epoch.
        max_age_s: for how long one need not ask again.
        etag: its ETag; may be empty.
    """

    records: tuple[TuningRecord, ...]
    at: float
    max_age_s: float
    etag: str = ""

    @property
    def is_fresh(self) -> bool:
        # an answer from the future: the clock was set back since
        return 0 <= time.time() - self.at < self.max_age_s


class _Answers:
    """The answers that a process remembers; threads of it may look up at once."""

    def __init__(self) -> None:
        self._kept: LRUCache[str, CachedAnswer] = LRUCache(MOST_IN_MEMORY)
        self._using = Lock()

    def get(self, name: str) -> CachedAnswer | None:
        with self._using:
            return self._kept.get(name)

    def put(self, name: str, kept: CachedAnswer) -> None:
        with self._using:
            self._kept[name] = kept


class _Forgotten(dict[str, float]):
    """Up to when answers of services are not believed, as this process knows."""


class AnswerCache:
    """The answers of one service for one device and policy."""

    def __init__(self, address: Address, look_up: LookUp) -> None:
        self._address = address
        device = look_up.device.id if look_up.device else ""
        self._asked = ("remote", str(address), device, look_up.policy)
        self._cache: DiskCache | None = default_cache()

    def read(self, workload: WorkloadKey) -> CachedAnswer | None:
        """The cached answer about a workload, however old.

        One from another process counts if it is fresher than that of this process.
        """
        name = self._name(workload)
        answers = remembered(_Answers)
        known = answers.get(name)
        if known is None or not known.is_fresh:
            content = self._cache.read(name) if self._cache else None
            other = _from_bytes(content, workload) if content else None
            if other and (known is None or other.at > known.at):
                known = other
        if known is None or known.at <= self._forgotten_at:
            return None
        answers.put(name, known)
        return known

    def stored(
        self,
        answers: Iterable[tuple[WorkloadKey, BestAnswer]],
        old: Mapping[WorkloadKey, CachedAnswer],
    ) -> dict[WorkloadKey, CachedAnswer]:
        """Answers, each cached as it arrives, replacing the previous one.

        Args:
            old: the earlier answers, for those that are unchanged.
        """
        found: dict[WorkloadKey, CachedAnswer] = {}
        for workload, answer in answers:
            records = old[workload].records if answer.is_unchanged else answer.records
            kept = CachedAnswer(records, time.time(), answer.max_age_s, answer.etag)
            name = self._name(workload)
            remembered(_Answers).put(name, kept)
            if self._cache is not None:
                self._cache.write(name, _to_bytes(kept))
            found[workload] = kept
        return found

    @cached_property
    def _forgotten_at(self) -> float:
        """Up to when answers of the service are not believed any more."""
        name = _mark(self._address)
        content = self._cache.read(name) if self._cache else None
        return max(remembered(_Forgotten).get(name, 0.0), _time_of(content))

    def _name(self, workload: WorkloadKey) -> str:
        asked = "\0".join((*self._asked, workload))
        return hashlib.sha256(asked.encode()).hexdigest()


def forget_answers(address: Address) -> None:
    """Invalidate all cached answers, in all processes of the user."""
    name, now = _mark(address), time.time()
    remembered(_Forgotten)[name] = now
    if cache := default_cache():
        cache.write(name, repr(now).encode())


def _mark(address: Address) -> str:
    return hashlib.sha256(f"forgotten\0{address}".encode()).hexdigest()


def _time_of(content: bytes | None) -> float:
    try:
        return float(content or 0)
    except ValueError:
        return 0.0


def _to_bytes(kept: CachedAnswer) -> bytes:
    marked = [record.id for record in kept.records if not record.is_trusted]
    head = {
        "at": kept.at,
        "max_age_s": kept.max_age_s,
        "etag": kept.etag,
        "untrusted": marked,
    }
    return "\n".join([json.dumps(head), *map(to_json, kept.records)]).encode()


def _from_bytes(content: bytes, workload: WorkloadKey) -> CachedAnswer | None:
    """Inverse of :func:`_to_bytes`; None for anything else."""
    try:
        head, *lines = content.decode().split("\n")
        given = json.loads(head)
        at, max_age_s = float(given["at"]), float(given["max_age_s"])
        marked = frozenset(given.get("untrusted", ()))
        read = (from_json(TuningRecord, line) for line in lines)
        records = tuple(untrusted(r) if marked and r.id in marked else r for r in read)
    except (InvalidRecordError, KeyError, TypeError, ValueError, RecursionError):
        return None
    if any(record.workload != workload for record in records):
        return None
    return CachedAnswer(records, at, max_age_s, str(given.get("etag", "")))
