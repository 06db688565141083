"""``best``: the candidates of a service for workloads, a device and a policy.

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
"""How long an answer is cached that does not say so: a miss, or one of a batch."""

MAX_STATED_AGE_S = 86400.0
"""However long a service says that its answer may be cached."""

BATCH = 200
"""How many workloads one request names."""

MAX_TEXT_LENGTH = 20_000
"""Maximum characters of a workload's text that a service stores with a miss."""

MAX_IN_URL = 2_000
"""Maximum characters of a text in a URL; longer ones are sent in a body."""

NO_DEMAND = {"counts": "false"}
"""Parameters of a query that does not count as demand."""

_ETAG = re.compile(r'(W/)?"[!#-~]{1,200}"')
_FACTS = re.compile(r'"facts"\s*:\s*\[\s*')
_COMMA = re.compile(r"\s*,\s*")
_MAX_AGE = re.compile(r"\bmax-age=(\d{1,9})\b")


class BestAnswer(NamedTuple):
    """A service's answer about a workload.

    Attributes:
        records: the valid ones, ordered by id; none for a miss.
        is_unchanged: whether it equals the earlier answer, and was not sent again.
        etag: its ETag; empty if it has none.
        max_age_s: for how long no new request is needed.
    """

    records: tuple[TuningRecord, ...] = ()
    is_unchanged: bool = False
    etag: str = ""
    max_age_s: float = MAX_AGE_S


def request_in_parts(
    new_client: Callable[[], AbstractContextManager[Client]],
    look_up: LookUp,
    etags: Mapping[WorkloadKey, str],
    on_cut_off: Callable[[str], None],
) -> Iterator[tuple[WorkloadKey, BestAnswer]]:
    """Yield the answers as they arrive; halve a part whose response is too large.

    Of a response about one workload that is too large, what arrived counts.

    Args:
        new_client: makes the client of each request.
        etags: ETags of earlier answers.
        on_cut_off: called with a message for each response that is too large.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    parts = _parts(look_up)
    while parts:
        part = parts.pop(0)
        try:
            with new_client() as client:
                request = replace(look_up, workloads=dict(part))
                answers = _request_some(client, request, etags)
        except CutOffError as error:
            truncated = _parse_truncated(part[0][0], error.body)
            if truncated is None:  # it is garbage, however large
                raise
            on_cut_off(str(error))
            if len(part) > 1:
                middle = len(part) // 2
                parts[:0] = [part[:middle], part[middle:]]
                continue
            answers = {part[0][0]: truncated}
        # What did not fit into the response is requested again, alone if necessary.
        if left := [item for item in part if item[0] not in answers]:
            parts.insert(0, left)
        yield from answers.items()


def _parts(look_up: LookUp) -> list[list[tuple[WorkloadKey, str]]]:
    """Return the workloads of each request, with their texts."""
    workloads = list(look_up.workloads.items())
    return [workloads[k : k + BATCH] for k in range(0, len(workloads), BATCH)]


def best_of(
    client: Client, look_up: LookUp, etags: Mapping[WorkloadKey, str] | None = None
) -> dict[WorkloadKey, BestAnswer]:
    """Request one workload alone, or several together.

    Args:
        etags: ETags of earlier answers.

    Raises:
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
        ServiceError: if an answer is not about its workload.
    """
    answers: dict[WorkloadKey, BestAnswer] = {}
    for part in _parts(look_up):
        left = dict(part)
        while left:
            answers |= _request_some(client, replace(look_up, workloads=left), etags)
            left = {key: text for key, text in left.items() if key not in answers}
    return answers


def _request_some(
    client: Client, look_up: LookUp, etags: Mapping[WorkloadKey, str] | None = None
) -> dict[WorkloadKey, BestAnswer]:
    """Return the answers that fit into one response; always that to the first.

    See :func:`best_of`.
    """
    workloads = list(look_up.workloads.items())
    workload, text = workloads[0]
    # A GET can be answered by caches on the way, and by 304; a batch cannot.
    if len(workloads) == 1 and len(quote(text)) <= MAX_IN_URL:
        etag = (etags or {}).get(workload, "")
        return {workload: _request_single(client, look_up, workload, text, etag)}
    return _request_batch(client, look_up, workloads)


def _parse_truncated(workload: WorkloadKey, body: bytes) -> BestAnswer | None:
    """Parse a truncated answer about one workload; None without a complete fact."""
    facts = _complete_facts(body)
    if not facts:
        return None
    return BestAnswer(_records({"workload": workload, "facts": facts}, workload))


def _records(document: Any, workload: WorkloadKey) -> tuple[TuningRecord, ...]:
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
    records = {r.id: r for r in valid_records([*facts, *slower], workload)}
    return tuple(records[record_id] for record_id in sorted(records))


def _complete_facts(body: bytes) -> list[Any]:
    """Return the complete facts in a truncated answer about one workload.

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


def _request_single(
    client: Client, look_up: LookUp, workload: WorkloadKey, text: str, etag: str
) -> BestAnswer:
    query = _device_and_policy(look_up)
    if not look_up.counts:
        query |= NO_DEMAND
    elif text:
        query["text"] = text
    path = f"/v1/best/{quote(workload, safe='')}"
    try:
        reply = client.get(path, query, etag=etag)
    except RecordNotFoundError:
        return BestAnswer()
    age_s = _max_age_s(reply.headers.get("cache-control", ""))
    if reply.status == 304:
        return BestAnswer(is_unchanged=True, etag=etag, max_age_s=age_s)
    # An ETag is sent back verbatim, so it must be one: no other header gets in.
    new = reply.headers.get("etag", "")
    tag = new if _ETAG.fullmatch(new) else ""
    document = parsed(client.address, reply)
    if document is None:
        raise ServiceError(f"the service at {client.address} answered with nothing")
    return BestAnswer(_records(document, workload), etag=tag, max_age_s=age_s)


def _request_batch(
    client: Client, look_up: LookUp, workloads: Sequence[tuple[WorkloadKey, str]]
) -> dict[WorkloadKey, BestAnswer]:
    """Return the answers that fit into the response; always the first one."""
    entries = [
        {"key": workload, "text": text if len(text) <= MAX_TEXT_LENGTH else None}
        if text
        else workload
        for workload, text in workloads
    ]
    body = json.dumps({**_device_and_policy(look_up), "workloads": entries})
    query = "" if look_up.counts else f"?{urlencode(NO_DEMAND)}"
    reply = client.post(f"/v1/best:batch{query}", body)
    document = parsed(client.address, reply)
    answers = document.get("answers") if isinstance(document, dict) else None
    if not isinstance(answers, list) or len(answers) != len(workloads):
        raise ServiceError(
            f"the service at {client.address} answered with something other than "
            f"{len(workloads)} answers"
        )
    return {
        workload: BestAnswer(_records(answer, workload))
        for k, ((workload, _), answer) in enumerate(
            zip(workloads, answers, strict=True)
        )
        if k == 0 or not _is_elsewhere(answer)
    }


def _is_elsewhere(answer: Any) -> bool:
    """Whether there are facts that did not fit beside those of other workloads."""
    return isinstance(answer, dict) and bool(
        answer.get("facts") == [] and answer.get("next")
    )


def _device_and_policy(look_up: LookUp) -> dict[str, str]:
    """Return the parameters of a request that do not depend on the workload."""
    parameters: dict[str, str] = {"policy": look_up.policy}
    if (device := look_up.device) is not None:
        parameters["device"] = device.id
        parameters["architecture"] = f"{device.kind}/{device.architecture}"
    return parameters


def _max_age_s(cache_control: str) -> float:
    """Return for how long a response with this header may be cached."""
    if "no-store" in cache_control or "no-cache" in cache_control:
        return 0.0
    stated = _MAX_AGE.search(cache_control)
    return min(float(stated[1]), MAX_STATED_AGE_S) if stated else MAX_AGE_S
