"""The answers of a service: candidates for workloads, requested and cached.

Its ranking is not used, since it does not know the driver here: what it sends are
candidates, from which :func:`feinsum.records.find_best_match` chooses. It sends
entries, of which only those whose content id is right are used::

    {"id": "7c..", "is_trusted": false, "document": {"workload": ...}}
       -> canonical text of the document -> SHA-256 == "7c.."? -> parsed, marked

All processes of a user share what they know about services. Each entry has a time. This
process keeps it in memory, and shares it with the others in a file of the cache; the
newer of the two counts, and a file is read and checked like a response::

    answer        the facts of a workload for a device and a policy
    failure       a service that failed is skipped for a minute
    invalidation  answers from before it are not used, since facts were retracted
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

from cachetools import LRUCache

from feinsum.cache import get_default_cache
from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address
from feinsum.db.remote.client import Client, CutOffError
from feinsum.errors import InvalidRecordError, RecordNotFoundError, ServiceError
from feinsum.memory import get_remembered
from feinsum.records import (
    Document,
    DocumentKind,
    LookUp,
    TuningRecord,
    from_json,
    mark_untrusted,
    to_json,
)
from feinsum.records.kinds import parse_foreign_document

logger = logging.getLogger(__name__)

MAX_AGE_S = 60.0
"""How long to cache an answer without a lifetime: a miss, or one of a batch."""

MAX_STATED_AGE_S = 86400.0
"""Maximum lifetime of a cached answer, whatever the service allows."""

BATCH = 200
"""Maximum workloads in one request."""

MAX_TEXT_LENGTH = 20_000
"""Maximum characters of a workload's text that a service stores with a miss."""

MAX_IN_URL = 2_000
"""Maximum characters of a text in a URL; longer ones are sent in a body."""

NO_DEMAND = {"counts": "false"}
"""Parameters of a query that is not counted as demand."""

_ETAG = re.compile(r'(W/)?"[!#-~]{1,200}"')
_FACTS = re.compile(r'"facts"\s*:\s*\[\s*')
_COMMA = re.compile(r"\s*,\s*")
_MAX_AGE = re.compile(r"\bmax-age=(\d{1,9})\b")


@dataclass(frozen=True)
class Answer:
    """A service's answer about a workload, as it is cached.

    Attributes:
        records: the valid ones, ordered by id; none for a miss.
        etag: its ETag; empty if it has none.
        max_age_s: for how long no new request is needed.
        at: when it was cached, in seconds since the epoch.
        untrusted: ids of records whose senders are not trusted: trust is no part of a
            record.
    """

    records: tuple[TuningRecord, ...] = ()
    etag: str = ""
    max_age_s: float = MAX_AGE_S
    at: float = 0.0
    untrusted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        records = tuple(
            mark_untrusted(r) if self.untrusted and r.id in self.untrusted else r
            for r in self.records
        )
        marked = tuple(r.id for r in records if not r.is_trusted)
        object.__setattr__(self, "records", records)
        object.__setattr__(self, "untrusted", marked)


def request_best(
    client: Client,
    look_up: LookUp,
    earlier: Mapping[WorkloadKey, Answer] | None = None,
    on_cut_off: Callable[[str], None] | None = None,
) -> Iterator[tuple[WorkloadKey, Answer]]:
    """Yield the answers as they arrive, from as few requests as possible.

    Args:
        client: client of the service.
        look_up: the workloads to request, with the conditions of the look-up.
        earlier: earlier answers, which the service may confirm by their ETags.
        on_cut_off: called with a message for each response that is too large; then its
            part is halved or, if it is about one workload, what arrived counts. None
            to raise an error instead.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    workloads = list(look_up.workloads.items())
    batches = [workloads[k : k + BATCH] for k in range(0, len(workloads), BATCH)]
    while batches:
        batch = batches.pop(0)
        try:
            answers = _request_part(client, look_up, batch, earlier or {})
        except CutOffError as error:
            truncated = _parse_truncated(batch[0][0], error.body)
            # without a complete fact, it is garbage, however large
            if on_cut_off is None or truncated is None:
                raise
            on_cut_off(str(error))
            if len(batch) > 1:
                middle = len(batch) // 2
                batches[:0] = [batch[:middle], batch[middle:]]
                continue
            answers = {batch[0][0]: truncated}
        # What did not fit into the response is requested again, alone if necessary.
        if missing := [item for item in batch if item[0] not in answers]:
            batches.insert(0, missing)
        yield from answers.items()


def _request_part(
    client: Client,
    look_up: LookUp,
    workloads: list[tuple[WorkloadKey, str]],
    earlier: Mapping[WorkloadKey, Answer],
) -> dict[WorkloadKey, Answer]:
    """Return the answers that fit into one response: at least the first one."""
    parameters: dict[str, str] = {"policy": look_up.policy}
    if (device := look_up.device) is not None:
        parameters["device"] = device.id
        parameters["architecture"] = f"{device.kind}/{device.architecture}"
    workload, text = workloads[0]
    # A GET can be answered by caches on the way, and by 304; a batch cannot.
    if len(workloads) > 1 or len(quote(text)) > MAX_IN_URL:
        return _request_batch(client, look_up, workloads, parameters)
    if not look_up.counts:
        parameters |= NO_DEMAND
    elif text:
        parameters["text"] = text
    confirmed = earlier.get(workload, Answer())
    path = f"/v1/best/{quote(workload, safe='')}"
    try:
        reply = client.get(path, parameters, etag=confirmed.etag)
    except RecordNotFoundError:
        return {workload: Answer()}
    age_s = _parse_max_age_s(reply.headers.get("cache-control", ""))
    if reply.status == 304:
        return {workload: replace(confirmed, max_age_s=age_s)}
    if (document := client.parse(reply)) is None:
        raise ServiceError(f"the service at {client.address} answered with nothing")
    # An ETag is sent back verbatim, so it must be one: no other header gets in.
    sent = reply.headers.get("etag", "")
    etag = sent if _ETAG.fullmatch(sent) else ""
    return {workload: Answer(_parse_records(document, workload), etag, age_s)}


def _request_batch(
    client: Client,
    look_up: LookUp,
    workloads: list[tuple[WorkloadKey, str]],
    parameters: Mapping[str, str],
) -> dict[WorkloadKey, Answer]:
    entries = [
        {"key": workload, "text": text if len(text) <= MAX_TEXT_LENGTH else None}
        if text
        else workload
        for workload, text in workloads
    ]
    query = "" if look_up.counts else f"?{urlencode(NO_DEMAND)}"
    body = json.dumps({**parameters, "workloads": entries})
    document = client.parse(client.post(f"/v1/best:batch{query}", body))
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(answers, list) or len(answers) != len(workloads):
        raise ServiceError(
            f"the service at {client.address} answered with something other than "
            f"{len(workloads)} answers"
        )
    complete: dict[WorkloadKey, Answer] = {}
    for (workload, _), answer in zip(workloads, answers, strict=True):
        # facts that did not fit beside those of other workloads are on another page
        has_facts_elsewhere = isinstance(answer, dict) and bool(
            answer.get("facts") == [] and answer.get("next")
        )
        if not complete or not has_facts_elsewhere:
            complete[workload] = Answer(_parse_records(answer, workload))
    return complete


def _parse_records(document: Any, workload: WorkloadKey) -> tuple[TuningRecord, ...]:
    """Return the valid records of an answer, ordered by id; none for a miss.

    Raises:
        ServiceError: if it is not an answer about that workload.
    """
    if document is None:
        return ()
    fields = document if isinstance(document, dict) else {}
    facts, slower = fields.get("facts"), fields.get("slower", [])
    is_about_workload = fields.get("workload") == workload
    if not (is_about_workload and isinstance(facts, list) and isinstance(slower, list)):
        raise ServiceError(
            f"a service answered with something other than facts of {workload}"
        )
    valid = list_valid_documents("record", [*facts, *slower], workload)
    records = {record.id: cast(TuningRecord, record) for record in valid}
    return tuple(records[record_id] for record_id in sorted(records))


def _parse_truncated(workload: WorkloadKey, body: bytes) -> Answer | None:
    """Parse a truncated answer about one workload; None without a complete fact.

    >>> body = b'{"workload": "k", "facts": [{"id": "a"}, {"id": '
    >>> _parse_truncated(WorkloadKey("k"), body)
    Answer(records=(), etag='', max_age_s=60.0, at=0.0, untrusted=())
    """
    text = body.decode(errors="replace")
    start = _FACTS.search(text)
    position = start.end() if start else len(text)
    facts: list[Any] = []
    decoder = json.JSONDecoder()
    while position < len(text):
        try:
            fact, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        facts.append(fact)
        following = _COMMA.match(text, position)
        position = following.end() if following else len(text)
    if not facts:
        return None
    return Answer(_parse_records({"workload": workload, "facts": facts}, workload))


def _parse_max_age_s(cache_control: str) -> float:
    """Return for how long a response with this header may be cached."""
    if "no-store" in cache_control or "no-cache" in cache_control:
        return 0.0
    stated = _MAX_AGE.search(cache_control)
    return min(float(stated[1]), MAX_STATED_AGE_S) if stated else MAX_AGE_S


def parse_entry(kind: DocumentKind, entry: Any) -> Document:
    """Return the document of an entry of a list, after checking its id.

    Raises:
        InvalidRecordError: if it is not well formed, or is another one.
    """
    if not isinstance(entry, dict):
        raise InvalidRecordError(f"an entry of {kind}s is no JSON object")
    document = parse_foreign_document(kind, entry.get("id"), entry.get("document"))
    # an older service does not say whether it trusts the sender
    return mark_untrusted(document) if entry.get("is_trusted") is False else document


def list_valid_documents(
    kind: DocumentKind, entries: Iterable[Any], workload: str | None = None
) -> list[Document]:
    """Return the documents of a list that match their ids, in order.

    Those of recorders that the service does not trust are marked. Damaged documents,
    and those of other workloads, are skipped, which is logged once.
    """
    documents: list[Document] = []
    problems = []
    for entry in entries:
        try:
            document = parse_entry(kind, entry)
            if workload not in (None, getattr(document, "workload", None)):
                raise InvalidRecordError(
                    f"record {document.id} belongs to another workload"
                )
            documents.append(document)
        except InvalidRecordError as error:
            problems.append(str(error))
    # One line for all: a hostile service could fill the log.
    if problems:
        first = "".join(c if c.isprintable() else "?" for c in problems[0][:500])
        logger.error(
            "skipped %d facts of a service; the first one: %s", len(problems), first
        )
    return documents


# Entries that processes share

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
    """Return the newest entry of memory and, if that is not enough, of disk."""
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
        # An entry under a wrong name would answer another look-up.
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
