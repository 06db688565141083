"""``best``: what a service knows about workloads, for a device and a policy.

Its ranking is not used, since it does not know the driver here: what it sends are
candidates, from which :func:`feinsum.records.best_match` chooses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from feinsum.canonical import WorkloadKey
from feinsum.db.remote.client import Client, parsed
from feinsum.db.remote.documents import valid_records
from feinsum.db.remote.wire import CutOffError
from feinsum.errors import RecordNotFoundError, ServiceError
from feinsum.records import LookUp, TuningRecord

MAX_AGE_S = 60.0
"""For how long an answer is believed that does not say so: a miss, or one of many."""

MOST_AGE_S = 86400.0

AT_ONCE = 200
"""How many workloads are asked for in one request."""

LONGEST_TEXT = 20_000
"""The longest text of a workload that a service keeps with a miss."""

LONGEST_IN_URL = 2_000
"""The longest text that is sent in a URL; longer ones are sent in a body."""

NOT_WANTED = {"counts": "false"}
"""Parameters of queries for extents other than the wanted ones."""

_ETAG = re.compile(r'(W/)?"[!#-~]{1,200}"')
_FACTS = re.compile(r'"facts"\s*:\s*\[\s*')
_COMMA = re.compile(r"\s*,\s*")
_MAX_AGE = re.compile(r"\bmax-age=(\d{1,9})\b")


class BestAnswer(NamedTuple):
    """A service's answer about a workload.

    Attributes:
        records: the valid ones, ordered by id; none for a miss.
        is_unchanged: whether it equals the earlier answer, and is not sent again.
        etag: its ETag; empty if it has none.
        max_age_s: for how long one need not ask again.
    """

    records: tuple[TuningRecord, ...] = ()
    is_unchanged: bool = False
    etag: str = ""
    max_age_s: float = MAX_AGE_S


def ask_in_parts(
    asking: Callable[[], AbstractContextManager[Client]],
    look_up: LookUp,
    etags: Mapping[WorkloadKey, str],
    on_cut_off: Callable[[str], None],
) -> Iterator[tuple[WorkloadKey, BestAnswer]]:
    """The answers as they arrive; a part whose response is too large, in halves.

    Of a response about one workload that is too large, what arrived counts.

    Args:
        asking: makes the client of each request.
        etags: ETags of known answers.
        on_cut_off: is told of each response that is too large.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    parts = _parts(look_up)
    while parts:
        part = parts.pop(0)
        try:
            with asking() as client:
                asked = replace(look_up, workloads=dict(part))
                answers = _some_best_of(client, asked, etags)
        except CutOffError as error:
            some = _parse_truncated(part[0][0], error.body)
            if some is None:  # it is garbage, however large
                raise
            on_cut_off(str(error))
            if len(part) > 1:
                middle = len(part) // 2
                parts[:0] = [part[:middle], part[middle:]]
                continue
            answers = {part[0][0]: some}
        if left := [one for one in part if one[0] not in answers]:
            parts.insert(0, left)
        yield from answers.items()


def _parts(look_up: LookUp) -> list[list[tuple[WorkloadKey, str]]]:
    """The workloads of each request."""
    wanted = list(look_up.workloads.items())
    return [wanted[k : k + AT_ONCE] for k in range(0, len(wanted), AT_ONCE)]


def best_of(
    client: Client, look_up: LookUp, etags: Mapping[WorkloadKey, str] | None = None
) -> dict[WorkloadKey, BestAnswer]:
    """Request one workload alone, or several together.

    Args:
        etags: ETags of known answers.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    found: dict[WorkloadKey, BestAnswer] = {}
    for part in _parts(look_up):
        left = dict(part)
        while left:
            found |= _some_best_of(client, replace(look_up, workloads=left), etags)
            left = {key: text for key, text in left.items() if key not in found}
    return found


def _some_best_of(
    client: Client, look_up: LookUp, etags: Mapping[WorkloadKey, str] | None = None
) -> dict[WorkloadKey, BestAnswer]:
    """The answers that have room in one response; that to the first workload always.

    Args:
        etags: ETags of known answers.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    asked = list(look_up.workloads.items())
    workload, text = asked[0]
    if len(asked) == 1 and len(quote(text)) <= LONGEST_IN_URL:
        etag = (etags or {}).get(workload, "")
        return {workload: _one(client, look_up, workload, text, etag)}
    return _many(client, look_up, asked)


def _parse_truncated(workload: WorkloadKey, body: bytes) -> BestAnswer | None:
    """A truncated answer about one workload; None if it has no complete fact."""
    facts = _complete_facts(body)
    if not facts:
        return None
    return BestAnswer(_records({"workload": workload, "facts": facts}, workload))


def _records(document: Any, workload: WorkloadKey) -> tuple[TuningRecord, ...]:
    """The valid records of an answer, ordered by id; none for a miss.

    Raises:
        ServiceError: if it is not an answer about that workload.
    """
    if document is None:
        return ()
    given = document if isinstance(document, dict) else {}
    facts, slower = given.get("facts"), given.get("slower", [])
    is_about = given.get("workload") == workload
    if not (is_about and isinstance(facts, list) and isinstance(slower, list)):
        raise ServiceError(
            f"a service answered with something other than facts of {workload}"
        )
    records = {r.id: r for r in valid_records([*facts, *slower], workload)}
    return tuple(records[record_id] for record_id in sorted(records))


def _complete_facts(body: bytes) -> list[Any]:
    """The complete facts in a truncated answer about one workload.

    >>> body = b'{"workload": "k", "facts": [{"id": "a"}, {"id": "b"}, {"id": '
    >>> _complete_facts(body)
    [{'id': 'a'}, {'id': 'b'}]
    """
    text = body.decode(errors="replace")
    start = _FACTS.search(text)
    at = start.end() if start else len(text)
    facts: list[Any] = []
    decoder = json.JSONDecoder()
    while at < len(text):
        try:
            fact, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        facts.append(fact)
        following = _COMMA.match(text, at)
        at = following.end() if following else len(text)
    return facts


def _one(
    client: Client, look_up: LookUp, workload: WorkloadKey, text: str, etag: str
) -> BestAnswer:
    query = {**_place(look_up), **({"text": text} if text and look_up.counts else {})}
    query |= {} if look_up.counts else NOT_WANTED
    path = f"/v1/best/{quote(workload, safe='')}"
    try:
        reply = client.get(path, query, etag=etag)
    except RecordNotFoundError:
        return BestAnswer()
    age_s = _max_age_s(reply.headers.get("cache-control", ""))
    if reply.status == 304:
        return BestAnswer(is_unchanged=True, etag=etag, max_age_s=age_s)
    new = reply.headers.get("etag", "")
    tag = new if _ETAG.fullmatch(new) else ""
    document = parsed(client.address, reply)
    if document is None:
        raise ServiceError(f"the service at {client.address} answered with nothing")
    return BestAnswer(_records(document, workload), etag=tag, max_age_s=age_s)


def _many(
    client: Client, look_up: LookUp, asked: Sequence[tuple[WorkloadKey, str]]
) -> dict[WorkloadKey, BestAnswer]:
    """The answers that had room; the first one always."""
    workloads = [
        {"key": workload, "text": text if len(text) <= LONGEST_TEXT else None}
        if text
        else workload
        for workload, text in asked
    ]
    question = json.dumps({**_place(look_up), "workloads": workloads})
    query = "" if look_up.counts else f"?{urlencode(NOT_WANTED)}"
    reply = client.post(f"/v1/best:batch{query}", question)
    document = parsed(client.address, reply)
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(answers, list) or len(answers) != len(asked):
        raise ServiceError(
            f"the service at {client.address} answered with something other than "
            f"{len(asked)} answers"
        )
    return {
        workload: BestAnswer(_records(answer, workload))
        for k, ((workload, _), answer) in enumerate(zip(asked, answers, strict=True))
        if k == 0 or not _is_elsewhere(answer)
    }


def _is_elsewhere(answer: Any) -> bool:
    """Whether there are facts that had no room beside those of other workloads."""
    return isinstance(answer, dict) and bool(
        answer.get("facts") == [] and answer.get("next")
    )


def _place(look_up: LookUp) -> dict[str, str]:
    """For which device, in the words of the service; all devices without one."""
    device = look_up.device
    place: dict[str, str] = {"policy": look_up.policy}
    if device is None:
        return place
    architecture = f"{device.kind}/{device.architecture}"
    return {**place, "device": device.id, "architecture": architecture}


def _max_age_s(cache_control: str) -> float:
    """For how long an answer need not be asked for again, as far as it says so."""
    if "no-store" in cache_control or "no-cache" in cache_control:
        return 0.0
    found = _MAX_AGE.search(cache_control)
    return min(float(found[1]), MOST_AGE_S) if found else MAX_AGE_S
