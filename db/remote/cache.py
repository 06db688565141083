"""Entries about services that all processes of a user share: answers and failures.

Each entry has a time. This process keeps it in memory, and shares it with the others in
a file of the cache; the newer of the two counts::

    answer        the facts of a workload for a device and a policy, as text
    failure       a service that failed is skipped for a minute
    invalidation  answers from before it are not used, since facts were retracted

The disk has the text of each record, which is read and checked like a response.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, TypeVar, cast

from cachetools import LRUCache

from feinsum.cache import get_default_cache
from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address
from feinsum.db.remote.best import BestAnswer
from feinsum.errors import InvalidRecordError
from feinsum.memory import get_remembered
from feinsum.records import LookUp, TuningRecord, from_json, mark_untrusted, to_json

MAX_IN_MEMORY = 2000
"""Maximum entries of a process; the least recently used one is dropped."""

PAUSE_S = 60.0
"""How long a service is skipped after it failed.

A build has thousands of look-ups: without the pause, each would wait for its budget.
"""


class Timed(Protocol):
    """An entry and its time, in seconds since the epoch."""

    @property
    def at(self) -> float: ...


E = TypeVar("E", bound=Timed)


@dataclass(frozen=True)
class AgedAnswer:
    """A cached answer.

    Attributes:
        records: none for a miss.
        max_age_s: for how long no new request is needed.
        etag: its ETag; may be empty.
    """

    records: tuple[TuningRecord, ...]
    at: float
    max_age_s: float
    etag: str = ""

    @property
    def is_fresh(self) -> bool:
        return _is_recent(self, self.max_age_s)


@dataclass(frozen=True)
class Event:
    """A failure with its reason, or an invalidation."""

    at: float
    reason: str = ""


class _Entries:
    """The entries in the memory of a process; its threads may look up at once."""

    def __init__(self) -> None:
        self.by_name: LRUCache[str, Timed] = LRUCache(MAX_IN_MEMORY)
        self.lock = Lock()


def _is_recent(entry: Timed, age_s: float) -> bool:
    # an entry from the future means that the clock was set back since
    return 0 <= time.time() - entry.at < age_s


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(
    name: str,
    parse: Callable[[bytes], E | None],
    is_enough: Callable[[E], bool] = lambda _entry: False,
) -> E | None:
    """Return the newest entry of memory and disk.

    Args:
        name: name of the entry.
        parse: parses the bytes of a file; None for bytes that are not an entry.
        is_enough: whether an entry in memory makes the disk superfluous.
    """
    entries = get_remembered(_Entries)
    with entries.lock:
        entry = cast(E | None, entries.by_name.get(name))
    if entry is not None and is_enough(entry):
        return entry
    cache = get_default_cache()
    content = cache.read(name) if cache else None
    on_disk = parse(content) if content else None
    if on_disk and (entry is None or on_disk.at > entry.at):
        entry = on_disk
        with entries.lock:
            entries.by_name[name] = entry
    return entry


def _write(name: str, entry: Timed, content: bytes) -> None:
    entries = get_remembered(_Entries)
    with entries.lock:
        entries.by_name[name] = entry
    if cache := get_default_cache():
        cache.write(name, content)


def _write_event(name: str, event: Event) -> None:
    _write(name, event, json.dumps([event.at, event.reason]).encode())


def _parse_event(content: bytes) -> Event | None:
    try:
        time_s, reason = json.loads(content)
        return Event(float(time_s), str(reason))
    except (TypeError, ValueError, RecursionError):
        return None


class Breaker:
    """Whether a service may be queried now: not within a minute after a failure.

    A failure counts for one key: with another key, the service may be queried.
    """

    def __init__(self, address: Address, key: str | None) -> None:
        self._name = _name("failure", str(address), key or "")

    def explain_open(self) -> str:
        """Return why the service must not be queried now; empty if it may be."""
        failure = _read(self._name, _parse_event, _is_open)
        return failure.reason if failure and _is_open(failure) else ""

    def open(self, reason: str) -> None:
        """Skip the service from now on, in all processes of the user."""
        _write_event(self._name, Event(time.time(), reason))

    def reset(self) -> None:
        """Forget the failure, if any, after an answer."""
        entries = get_remembered(_Entries)
        with entries.lock:
            failed = entries.by_name.pop(self._name, None)
        if failed and (cache := get_default_cache()):
            cache.remove(self._name)


def _is_open(failure: Event) -> bool:
    return _is_recent(failure, PAUSE_S)


class AnswerCache:
    """The answers of one service for one device and policy."""

    def __init__(self, address: Address, look_up: LookUp) -> None:
        device = look_up.device.id if look_up.device else ""
        self._request = ("remote", str(address), device, look_up.policy)
        mark = _read(_mark(address), _parse_event)
        self._invalid_until = mark.at if mark else 0.0

    def read(self, workload: WorkloadKey) -> AgedAnswer | None:
        """Return the cached answer about a workload, however old."""

        def parse(content: bytes) -> AgedAnswer | None:
            return _parse_answer(content, workload)

        answer = _read(self.name_of(workload), parse, lambda entry: entry.is_fresh)
        return answer if answer and answer.at > self._invalid_until else None

    def store(
        self,
        answers: Iterable[tuple[WorkloadKey, BestAnswer]],
        earlier: Mapping[WorkloadKey, AgedAnswer],
    ) -> dict[WorkloadKey, AgedAnswer]:
        """Cache each answer as it arrives, and return all of them.

        Args:
            answers: workloads with their new answers.
            earlier: the cached answers, for those that are unchanged.
        """
        stored: dict[WorkloadKey, AgedAnswer] = {}
        for workload, answer in answers:
            records = (
                earlier[workload].records if answer.is_unchanged else answer.records
            )
            cached = AgedAnswer(records, time.time(), answer.max_age_s, answer.etag)
            _write(self.name_of(workload), cached, _to_bytes(cached))
            stored[workload] = cached
        return stored

    def name_of(self, workload: WorkloadKey) -> str:
        """Return the name of an entry."""
        return _name(*self._request, workload)


def forget_answers(address: Address) -> None:
    """Invalidate all cached answers, in all processes of the user."""
    _write_event(_mark(address), Event(time.time()))


def _mark(address: Address) -> str:
    return _name("forgotten", str(address))


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


def _parse_answer(content: bytes, workload: WorkloadKey) -> AgedAnswer | None:
    """Invert :func:`_to_bytes`; None for anything else."""
    try:
        head, *lines = content.decode().split("\n")
        fields = json.loads(head)
        at, max_age_s = float(fields["at"]), float(fields["max_age_s"])
        marked = frozenset(fields.get("untrusted", ()))
        read = (from_json(TuningRecord, line) for line in lines)
        records = tuple(
            mark_untrusted(r) if marked and r.id in marked else r for r in read
        )
    except (InvalidRecordError, KeyError, TypeError, ValueError, RecursionError):
        return None
    # An entry under a wrong name: the cache is a folder that others may write.
    if any(record.workload != workload for record in records):
        return None
    return AgedAnswer(records, at, max_age_s, str(fields.get("etag", "")))
