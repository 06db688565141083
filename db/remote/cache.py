"""Entries about services that all processes of a user share: answers and failures.

Each entry has a time. This process keeps it in memory, and shares it with the others in
a file of the cache; the newer of the two counts::

    answer        the facts of a workload for a device and a policy
    failure       a service that failed is skipped for a minute
    invalidation  answers from before it are not used, since facts were retracted

The disk has the JSON of each entry, which is read and checked like a response.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeVar, cast

from cachetools import LRUCache

from feinsum.cache import get_default_cache
from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address
from feinsum.db.remote.best import Answer
from feinsum.errors import InvalidRecordError
from feinsum.memory import get_remembered
from feinsum.records import LookUp, from_json, to_json

MAX_IN_MEMORY = 2000
"""Maximum entries of a process; the least recently used one is dropped."""

PAUSE_S = 60.0
"""How long a service is skipped after it failed.

A build has thousands of look-ups: without the pause, each would wait for its budget.
"""


@dataclass(frozen=True)
class Event:
    """A failure with its reason, or an invalidation."""

    at: float
    reason: str = ""


E = TypeVar("E", Event, Answer)


class _Entries:
    """The entries in the memory of a process; its threads may look up at once."""

    def __init__(self) -> None:
        self.by_name: LRUCache[str, Event | Answer] = LRUCache(MAX_IN_MEMORY)
        self.lock = Lock()


def _is_recent(entry: Event | Answer, age_s: float) -> bool:
    # an entry from the future means that the clock was set back since
    return 0 <= time.time() - entry.at < age_s


def is_fresh(answer: Answer) -> bool:
    """Return whether an answer needs no new request."""
    return _is_recent(answer, answer.max_age_s)


def _is_open(failure: Event) -> bool:
    return _is_recent(failure, PAUSE_S)


def _name(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(
    name: str, kind: type[E], is_enough: Callable[[E], bool] = lambda _entry: False
) -> E | None:
    """Return the newest entry of memory and disk.

    Args:
        name: name of the entry.
        kind: its class.
        is_enough: whether an entry in memory makes the disk superfluous.
    """
    entries = get_remembered(_Entries)
    with entries.lock:
        entry = cast(E | None, entries.by_name.get(name))
    if entry is not None and is_enough(entry):
        return entry
    cache = get_default_cache()
    content = cache.read(name) if cache else None
    try:
        on_disk = from_json(kind, content) if content else None
    except InvalidRecordError:  # damaged, or of another release
        on_disk = None
    if on_disk and (entry is None or on_disk.at > entry.at):
        entry = on_disk
        with entries.lock:
            entries.by_name[name] = entry
    return entry


def _write(name: str, entry: Event | Answer) -> None:
    entries = get_remembered(_Entries)
    with entries.lock:
        entries.by_name[name] = entry
    if cache := get_default_cache():
        cache.write(name, to_json(entry).encode())


class Breaker:
    """Whether a service may be queried now: not within a minute after a failure.

    A failure counts for one key: with another key, the service may be queried.
    """

    def __init__(self, address: Address, key: str | None) -> None:
        self._name = _name("failure", str(address), key or "")

    def explain_open(self) -> str:
        """Return why the service must not be queried now; empty if it may be."""
        failure = _read(self._name, Event, _is_open)
        return failure.reason if failure and _is_open(failure) else ""

    def open(self, reason: str) -> None:
        """Skip the service from now on, in all processes of the user."""
        _write(self._name, Event(time.time(), reason))

    def reset(self) -> None:
        """Forget the failure, if any, after an answer."""
        entries = get_remembered(_Entries)
        with entries.lock:
            failed = entries.by_name.pop(self._name, None)
        if failed and (cache := get_default_cache()):
            cache.remove(self._name)


class AnswerCache:
    """The answers of one service for one device and policy."""

    def __init__(self, address: Address, look_up: LookUp) -> None:
        device = look_up.device.id if look_up.device else ""
        self._request = ("remote", str(address), device, look_up.policy)
        mark = _read(_mark(address), Event)
        self._invalid_until = mark.at if mark else 0.0

    def read(self, workload: WorkloadKey) -> Answer | None:
        """Return the cached answer about a workload, however old."""
        answer = _read(self.name_of(workload), Answer, is_fresh)
        if answer is None or answer.at <= self._invalid_until:
            return None
        # An entry under a wrong name: the cache is a folder that others may write.
        if any(record.workload != workload for record in answer.records):
            return None
        return answer

    def store(
        self, answers: Iterable[tuple[WorkloadKey, Answer]]
    ) -> dict[WorkloadKey, Answer]:
        """Cache each answer as it arrives, and return all of them."""
        stored: dict[WorkloadKey, Answer] = {}
        for workload, answer in answers:
            stored[workload] = replace(answer, at=time.time())
            _write(self.name_of(workload), stored[workload])
        return stored

    def name_of(self, workload: WorkloadKey) -> str:
        """Return the name of an entry."""
        return _name(*self._request, workload)


def forget_answers(address: Address) -> None:
    """Invalidate all cached answers, in all processes of the user."""
    _write(_mark(address), Event(time.time()))


def _mark(address: Address) -> str:
    return _name("forgotten", str(address))
