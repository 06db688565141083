"""``best``: the facts that may serve for a workload, one at a time or many.

::

    GET /v1/best/{key}?device=...&policy=default  -> Shortcut -> best -> PreparedAnswer
    POST /v1/best:batch                           -> routing -> best_of_many

Clients wait for single look-ups, thousands a second. These bypass routing and
validation, parse their query by hand, and send prepared bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from feinsum.canonical.form import KEY_DIGITS
from feinsum.errors import InvalidRequestError, RecordNotFoundError
from feinsum.records import Policy
from feinsum.service.answers import (
    KEY,
    MAX_NAME,
    Answer,
    DeviceQuery,
    Nearness,
    check_key,
    is_shortened,
)
from feinsum.service.demand import MAX_TEXT
from feinsum.service.keys import require
from feinsum.service.lookup import ReadBudget
from feinsum.service.metrics import count_answer
from feinsum.service.middleware import get_caller, get_client_id
from feinsum.service.paging import from_cursor, to_cursor
from feinsum.service.problems import OF_BODIES, describe_problems
from feinsum.service.routes.documents import FactOf
from feinsum.service.state import Reading, Service, TheService

router = APIRouter(prefix="/v1", tags=["look-ups"])

PREFIX = "/v1/best/"
GZIP = re.compile(rb"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""In ``Accept-Encoding``: a weight of 0 refuses (RFC 9110, section 12.4.2)."""

MAX_CACHED_QUERY = 500
"""Bytes of a query whose parsed form is cached; 1,024 such take 4 MB."""

PART_SIZE = 100
"""Workloads of a batch in memory at a time."""

SHARE_BYTES = 64_000
"""Bytes of the documents for one workload of a batch, except the first."""

MAX_BYTES = 12_000_000
"""Largest answer to a batch; the client of this package reads 16 MiB."""

ANONYMOUS_BYTES = 1_000_000
"""Largest answer to a batch without a key, and bytes of the documents read for it: as
many as a worker reads in less than 100 ms.
"""

MISS = b"null"


class NearFact(FactOf):
    """A fact, and how near the device is that it was measured on."""

    nearness: Nearness


class Best(BaseModel):
    """Candidate facts for a workload, best first.

    Attributes:
        next: the cursor of the facts that did not fit; null if all did.
        slower: facts of the same recipes that were no faster than the untransformed
            kernel; for choosing, not for serving.
    """

    workload: str
    facts: list[NearFact]
    slower: list[NearFact]
    next: str | None = None


class BestOfMany(BaseModel):
    """An answer for each workload, in their order; null for a miss."""

    answers: list[Best | None]


class Question(BaseModel):
    """A requested workload."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, Field(pattern=f"^{KEY}$")]
    text: Annotated[str | None, Field(max_length=MAX_TEXT)] = None


class Batch(BaseModel):
    """Workloads requested for one device and policy."""

    model_config = ConfigDict(extra="forbid")

    workloads: Annotated[
        list[Annotated[str, Field(pattern=f"^{KEY}$")] | Question],
        Field(fail_fast=True),
    ]
    device: Annotated[str, Field(max_length=MAX_NAME)] = ""
    architecture: Annotated[str, Field(max_length=MAX_NAME)] = ""
    policy: Policy = "default"


def _describe_parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path" if name == "key" else "query",
        "required": name == "key",
        "description": description,
        "schema": {"type": "string", **schema},
    }


# FastAPI documents these; the route parses its parameters itself
PARAMETERS = [
    _describe_parameter(
        "key",
        "The key of the workload, or its beginning if no other begins so.",
        pattern=f"^{KEY}$",
    ),
    _describe_parameter(
        "device", "Id or name of a device; any if omitted.", maxLength=MAX_NAME
    ),
    _describe_parameter(
        "architecture",
        "Kind and architecture of a device that the service may "
        "not know, as `cpu/x86_64`.",
        maxLength=MAX_NAME,
    ),
    _describe_parameter(
        "policy", "The worst acceptable match.", enum=["strict", "default", "loose"]
    ),
    _describe_parameter("text", "The canonical text, stored with a miss."),
    _describe_parameter(
        "cursor",
        "`next` of the previous answer, for facts that did not fit.",
        maxLength=1000,
    ),
    _describe_parameter(
        "counts", "Whether a miss counts as demand.", enum=["true", "false"]
    ),
]


@router.get(
    "/best/{key}",
    response_model=Best,
    responses=describe_problems(404) | {304: {"description": "Not Modified"}},
    openapi_extra={"parameters": PARAMETERS},
)
async def best(request: Request) -> Response:
    """Return candidate facts for a workload, best first."""
    scope = request.scope
    # other routes have dependencies that check this
    require(get_caller(scope), "read")
    service: Service = request.app.state.service
    workload = check_key(scope["path"][len(PREFIX) :])
    target, text, counts = _query(scope["query_string"])
    answer = await service.lookup.answer((workload, target))
    # half a key is rare, and no key of a look-up that has to be fast
    if answer is None and is_shortened(workload):
        workload = await run_in_threadpool(service.store.complete_key, workload)
        answer = await service.lookup.answer((workload, target))
    if answer is None:
        if counts:
            service.misses.count(workload, target.device, text, get_client_id(scope))
        count_answer("miss")
        problem = f"no acceptable fact is recorded for {workload!r} with the policy "
        problem += f"{target.policy!r}; tune it, or keep the kernel as it is"
        if is_shortened(workload):
            problem += f"; a whole key ends with {KEY_DIGITS} hexadecimal digits"
        raise RecordNotFoundError(problem)
    # nginx and clients may keep an answer for a while; the ETag renews it
    age = f"{service.visibility}, max-age={service.settings.max_age_s}".encode()
    return PreparedAnswer(answer, dict(scope["headers"]), age)


class PreparedAnswer(Response):
    """An answer whose body and headers are bytes already."""

    def __init__(self, answer: Answer, headers: dict[bytes, bytes], age: bytes) -> None:
        # Response.__init__ would encode and count bytes that are ready
        self.background = None
        self.raw_headers = [
            (b"etag", answer.etag),
            (b"cache-control", age),
            # the body depends on the encoding, and whether it may be read on the key
            (b"vary", b"Accept-Encoding, Authorization"),
        ]
        if _has_answer(headers.get(b"if-none-match"), answer.etag):
            self.status_code, self.body = 304, b""
            count_answer("not-modified")
            return
        self.status_code, self.body = 200, answer.body
        count_answer("hit")
        self.raw_headers.append((b"content-type", b"application/json"))
        if GZIP.search(headers.get(b"accept-encoding", b"")):
            self.body = answer.compressed
            self.raw_headers.append((b"content-encoding", b"gzip"))
        self.raw_headers.append((b"content-length", b"%d" % len(self.body)))


class Shortcut:
    """ASGI middleware that calls :func:`best` without routing, for speed alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        # a key has no slash; longer paths are for routing to refuse
        is_best = path.startswith(PREFIX) and "/" not in (path[len(PREFIX) :] or "/")
        answer: ASGIApp
        if not is_best or scope["type"] != "http" or scope["method"] != "GET":
            answer = self._app
        else:
            # metrics and the log name the pattern, as after routing
            scope["route"] = ROUTE
            answer = await best(Request(scope))
        await answer(scope, receive, send)


ROUTE = router.routes[0]


@router.post(
    "/best:batch", response_model=BestOfMany, responses=describe_problems(*OF_BODIES)
)
async def best_of_many(
    batch: Batch,
    request: Request,
    service: TheService,
    caller: Reading,
    counts: Annotated[
        bool, Query(description="Whether misses count as demand.")
    ] = True,
) -> Response:
    """Return candidate facts for many workloads, in order; null for a miss."""
    max_batch = service.settings.max_batch
    if len(batch.workloads) > max_batch:
        raise InvalidRequestError(
            f"{len(batch.workloads)} workloads were requested, expected {max_batch} at "
            "most"
        )
    target = DeviceQuery(
        batch.device, batch.architecture, batch.policy, max_bytes=SHARE_BYTES
    )
    texts = {q.key: q.text for q in batch.workloads if isinstance(q, Question)}
    keys = [check_key(q if isinstance(q, str) else q.key) for q in batch.workloads]
    client = get_client_id(request.scope)

    def count(key: str) -> None:
        if counts:
            service.misses.count(key, target.device, texts.get(key), client)

    has_key = bool(caller.key_id)
    chunks = _write_batch(service, keys, target, count, has_key=has_key)
    # a short answer has a length, so that clients can check that it is whole
    if len(keys) <= PART_SIZE:
        body = b"".join([part async for part in chunks])
        return Response(body, media_type="application/json")
    # the first part before the status: what fails at once gets a problem document
    first_chunk = await anext(chunks)

    async def chained() -> AsyncIterator[bytes]:
        yield first_chunk
        async for chunk in chunks:
            yield chunk

    return StreamingResponse(chained(), media_type="application/json")


async def _write_batch(
    service: Service,
    keys: Sequence[str],
    target: DeviceQuery,
    count: Callable[[str], None],
    *,
    has_key: bool,
) -> AsyncIterator[bytes]:
    """Yield the answer to a batch; a key that is requested again is not read again.

    A workload whose facts do not fit, or would take too long to read, gets an answer
    without facts, whose ``next`` leads to them.
    """
    n_left, separator = MAX_BYTES if has_key else ANONYMOUS_BYTES, b'{"answers":['
    budget = ReadBudget() if has_key else ReadBudget(ANONYMOUS_BYTES)
    bodies: dict[str, bytes] = {}
    for start in range(0, max(1, len(keys)), PART_SIZE):
        chunk = keys[start : start + PART_SIZE]
        unread = [key for key in dict.fromkeys(chunk) if key not in bodies]
        queries = [(key, target) for key in unread]
        answers = await service.lookup.answers(queries, budget)
        missed = [key for (key, _), answer in answers.items() if answer is None]
        for key in missed:
            count(key)
        count_answer("miss", len(missed))
        count_answer("hit", len(answers) - len(missed))
        # workloads that were too much to read are referred to queries of their own
        bodies |= {key: _write_deferred(key) for key in unread}
        bodies |= {key: a.body if a else MISS for (key, _), a in answers.items()}
        answered = []
        for key in chunk:
            if len(bodies[key]) > n_left and bodies[key] != MISS:
                bodies[key] = _write_deferred(key)
            # a key that was sent twice is answered twice, and counts twice
            n_left -= len(bodies[key])
            answered.append(bodies[key])
        yield separator + b",".join(answered)
        separator = b","
    yield b"]}"


def _write_deferred(key: str) -> bytes:
    """Return the answer for facts that did not fit; its cursor leads to them."""
    empty = {"workload": key, "facts": [], "slower": [], "next": to_cursor(0)}
    return json.dumps(empty).encode()


def _query(query_string: bytes) -> tuple[DeviceQuery, str | None, bool]:
    """Read the query of a URL; unknown parameters are ignored."""
    # long queries have texts of einsums, which rarely come again
    is_short = len(query_string) <= MAX_CACHED_QUERY
    return (_parse_cached if is_short else _parse)(query_string)


def _parse(query_string: bytes) -> tuple[DeviceQuery, str | None, bool]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, max_num_fields=20
        )
    except ValueError:
        raise InvalidRequestError(
            "the query cannot be read; expected up to 20 parameters, percent-encoded"
        ) from None
    query = dict(pairs)
    start = from_cursor(query["cursor"], int)[0] if "cursor" in query else 0
    target = DeviceQuery(
        query.get("device", ""),
        query.get("architecture", ""),
        query.get("policy", "default"),  # type: ignore[arg-type]
        max(0, start),
    )
    counts = query.get("counts", "true")
    if counts not in ("true", "false"):
        raise InvalidRequestError(
            f"counts={counts[:50]!r} was given, expected true or false"
        )
    return target, query.get("text") or None, counts == "true"


# builds repeat few different queries
_parse_cached = lru_cache(1024)(_parse)


def _has_answer(tags: bytes | None, etag: bytes) -> bool:
    """Return whether the client has the answer already; tags are compared weakly."""
    if tags is None:
        return False
    return tags.strip() == b"*" or etag.removeprefix(b"W/") in tags
