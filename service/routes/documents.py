"""Routes that receive and send documents: facts, plans, limits, retractions.

A document is stored as the text that was sent and checked. Responses contain that text,
so that no stored document is parsed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from feinsum.db.server.pages import ListedFact
from feinsum.db.sql.retracting import Retracted
from feinsum.errors import InvalidRequestError, NoSuchRouteError, RecordNotFoundError
from feinsum.records import (
    DevicePeaks,
    PlanRecord,
    Retraction,
    RetractionQuery,
    TuningRecord,
    from_json,
    to_json,
)
from feinsum.records.kinds import DIGITS, MAX_REASON, MIN_DIGITS
from feinsum.service.pages.rendering import render_problem
from feinsum.service.paging import FACTS, PLANS, RETRACTIONS, Cursor, Limit, Listing
from feinsum.service.problems import OF_BODIES, describe_problems, make_problem_response
from feinsum.service.state import Admin, Reading, Recording, Service, TheService
from feinsum.service.texts import is_storable

router = APIRouter(prefix="/v1", tags=["documents"])

CONTENT_ID = r"^[0-9a-f]{64}$"

START = rf"^[0-9a-f]{{{MIN_DIGITS},{DIGITS}}}$"

ABBREVIATED = "Content id, or its beginning if no other begins so."

MAX_SUSPECTS = 1000
"""Maximum facts of each kind in the list of those retracted."""


async def _complete_fact(
    service: TheService,
    _: Reading,
    record_id: Annotated[str, Path(pattern=START, description=ABBREVIATED)],
) -> str:
    return await run_in_threadpool(service.store.complete_fact, record_id)


async def _complete_device(
    service: TheService,
    _: Reading,
    device_id: Annotated[str, Path(pattern=START, description=ABBREVIATED)],
) -> str:
    return await run_in_threadpool(service.store.complete_device, device_id)


FactId = Annotated[str, Depends(_complete_fact)]
DeviceId = Annotated[str, Depends(_complete_device)]
WorkloadFilter = Annotated[
    str | None,
    Query(max_length=200, description="A key, or its beginning if no other begins so."),
]
Words = Annotated[str, Field(max_length=MAX_REASON)]


class FactOf(BaseModel):
    """A fact with its content id.

    Attributes:
        is_trusted: whether a trusted key sent it, or nobody did.
    """

    id: str
    is_trusted: bool
    document: TuningRecord


class Facts(BaseModel):
    """A page of facts."""

    facts: list[FactOf]
    next: str | None


class PlanOf(BaseModel):
    """A plan, and what it moved and took, with its content id.

    Attributes:
        is_trusted: whether a trusted key sent it, or nobody did; clients ignore the
            seconds of others.
    """

    id: str
    is_trusted: bool
    document: PlanRecord


class Plans(BaseModel):
    """A page of plans."""

    plans: list[PlanOf]
    next: str | None


class Received(BaseModel):
    """The outcome for a fact that was sent.

    Attributes:
        is_quarantined: false; without it from the next release.
    """

    id: str
    is_quarantined: bool = False
    is_retracted: bool


class Ids(BaseModel):
    """Content ids of facts."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[
        list[Annotated[str, Field(pattern=CONTENT_ID)]], Field(fail_fast=True)
    ]


class Recorded(BaseModel):
    """Who sent a fact, and when."""

    recorder: str
    received_at: datetime


class TrustOf(BaseModel):
    """Who sent a fact, and who retracted it.

    Attributes:
        is_trusted: whether a trusted key sent it, or nobody did.
        is_quarantined, is_rejected: false; without them from the next release.
    """

    id: str
    is_trusted: bool
    is_quarantined: bool = False
    is_rejected: bool = False
    recordings: list[Recorded]
    retractions: list[Retraction] = []


class RetractionOf(BaseModel):
    """A retraction with its content id."""

    id: str
    document: Retraction


class Retractions(BaseModel):
    """A page of retractions."""

    retractions: list[RetractionOf]
    next: str | None


class Criteria(BaseModel):
    """Which facts, and whether they are retracted; at least one condition is needed.

    Attributes:
        ids: content ids, or at least their first 12 digits.
        recorders: facts that were sent with these names of keys and no others.
        transform: a name, or a name and a version.
        since: when the service received them, or else when they were measured.
    """

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[str], Field(max_length=1000)] = []
    workload: Words | None = None
    recorders: Annotated[list[Words], Field(max_length=100)] = []
    transform: Words | None = None
    since: Words | None = None
    reason: Words = ""
    # the harmless default: a mistake lists facts
    is_dry_run: bool = True


def describe_body(kind: type) -> dict[str, Any]:
    """Describe the body of a route that parses it itself, for ``openapi_extra``."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


STORED: dict[int | str, dict[str, Any]] = {
    **describe_problems(*OF_BODIES),
    200: {"description": "OK"},
    201: {"description": "Created"},
}
"""Responses to a document: 200 without a body if it was stored before, or 201."""


# Facts


@router.get(
    "/facts/{record_id}", response_model=TuningRecord, responses=describe_problems(404)
)
def fact(record_id: FactId, service: TheService, _: Reading) -> Response:
    """Return a fact by its content id; it never changes, but may be retracted."""
    age = f"max-age={service.settings.max_age_s}"
    headers = {"Cache-Control": f"{service.visibility}, {age}"}
    return make_json_response(to_json(service.store.get(record_id)), headers=headers)


@router.get(
    "/facts/{record_id}/trust", response_model=TrustOf, responses=describe_problems(404)
)
def trust(record_id: FactId, service: TheService, _: Reading) -> Any:
    """Return who recorded a fact, whether it is trusted, and who retracted it."""
    return service.store.trust(record_id)


@router.get("/facts", response_model=Facts, responses=describe_problems(404))
async def facts(
    service: TheService,
    caller: Reading,
    workload: WorkloadFilter = None,
    device: Annotated[str | None, Query(pattern=START, description=ABBREVIATED)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """List facts by id; all, of a workload, or of a device."""
    if device is not None:
        device = await _complete_device(service, caller, device)
    filters = {"workload": workload, "device_id": device}
    return await _answer_page(service, "facts", FACTS, cursor, limit, filters)


@router.post(
    "/facts",
    status_code=201,
    response_model=Received,
    responses=describe_problems(*OF_BODIES)
    | {200: {"model": Received, "description": "Already stored."}},
    openapi_extra=describe_body(TuningRecord),
)
async def add_fact(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """Store a fact: 201 if new, 200 if known."""
    record, receipt = await service.receive(TuningRecord, request, caller)
    received = Received(id=record.id, is_retracted=receipt.is_retracted)
    location = {"Location": f"/v1/facts/{record.id}"}
    status = 201 if receipt.is_new else 200
    return make_json_response(received.model_dump_json(), status, location)


@router.post("/facts:missing", responses=describe_problems(*OF_BODIES))
def missing(request: Ids, service: TheService, _: Reading) -> Ids:
    """Return the given ids that are not stored."""
    # the same bound as of a batch, so that one setting limits a request
    max_ids = service.settings.max_batch
    if len(request.ids) > max_ids:
        raise InvalidRequestError(
            f"{len(request.ids)} ids were sent, expected {max_ids} at most"
        )
    return Ids(ids=service.store.missing(request.ids))


# Plans and limits of devices


@router.get("/plans", response_model=Plans)
async def plans(
    service: TheService,
    _: Reading,
    workload: WorkloadFilter = None,
    trusted: Annotated[bool, Query(description="Only trusted ones.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """List plans by id; all, or of an einsum or a program."""
    filters = {"workload": workload, "only_trusted": trusted}
    return await _answer_page(service, "plans", PLANS, cursor, limit, filters)


@router.get(
    "/plans/{record_id}", response_model=PlanRecord, responses=describe_problems(404)
)
def recorded_plan(record_id: FactId, service: TheService, _: Reading) -> Response:
    """Return a plan fact by its content id."""
    return make_json_response(to_json(service.store.plan(record_id)))


@router.post(
    "/plans",
    status_code=201,
    response_class=Response,
    responses=STORED,
    openapi_extra=describe_body(PlanRecord),
)
async def add_plan(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """Store a plan fact: 201 if new, 200 if known.

    The steps of the plan are counted again; a fact with other counts is refused.
    """
    _, receipt = await service.receive(PlanRecord, request, caller)
    return Response(status_code=201 if receipt.is_new else 200)


@router.get(
    "/peaks/{device_id}", response_model=DevicePeaks, responses=describe_problems(404)
)
def peaks(device_id: DeviceId, service: TheService, _: Reading) -> Response:
    """Return the latest measured limits of a device; those of trusted keys first."""
    limits = service.store.peaks(device_id)
    if limits is None:
        raise RecordNotFoundError(f"no limits are known for the device {device_id}")
    return make_json_response(to_json(limits))


@router.post(
    "/peaks",
    status_code=201,
    response_class=Response,
    responses=STORED,
    openapi_extra=describe_body(DevicePeaks),
)
async def add_peaks(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """Store measured limits: 201 if new, 200 if known.

    They count if no trusted key sent others, or if the key is trusted.
    """
    _, receipt = await service.receive(DevicePeaks, request, caller)
    return Response(status_code=201 if receipt.is_new else 200)


# Retractions


@router.get("/retractions")
def retractions(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Retractions:
    """List retractions, latest first."""
    page, following = RETRACTIONS.read_page(service.store, cursor, limit)
    listed = [RetractionOf(id=entry.id, document=entry) for entry in page]
    return Retractions(retractions=listed, next=following)


@router.post(
    "/retractions",
    status_code=201,
    response_class=Response,
    responses=STORED,
    openapi_extra=describe_body(Retraction),
)
async def add_retraction(request: Request, service: TheService, _: Admin) -> Response:
    """Store a retraction made elsewhere: 201 if new, 200 if known."""
    retraction = from_json(Retraction, await request.body())
    is_new = await run_in_threadpool(service.store.add, retraction)
    service.lookup.expire()
    return Response(status_code=201 if is_new else 200)


@router.post(
    "/facts:retract",
    response_model=Retracted,
    responses=describe_problems(404, *OF_BODIES),
)
def retract(criteria: Criteria, service: TheService, caller: Admin) -> Any:
    """Retract facts by id, workload, recorder, transform and time."""
    query = RetractionQuery(
        ids=tuple(criteria.ids),
        workload=criteria.workload,
        recorders=tuple(criteria.recorders),
        transform=criteria.transform,
        since=criteria.since,
    )
    return _retract(
        service, query, criteria.reason, caller.name, is_dry_run=criteria.is_dry_run
    )


@router.delete(
    "/facts/{record_id}",
    response_model=Retracted,
    responses=describe_problems(404, 415),
)
def delete_fact(
    record_id: FactId,
    service: TheService,
    caller: Admin,
    reason: Annotated[str, Query(min_length=1, max_length=MAX_REASON)],
) -> Any:
    """Retract a fact immediately."""
    service.store.trust(record_id)  # refuses an unknown one
    query = RetractionQuery(ids=(record_id,))
    return _retract(service, query, reason, caller.name, is_dry_run=False)


def _retract(
    service: Service, query: RetractionQuery, reason: str, by: str, *, is_dry_run: bool
) -> Retracted:
    retracted = service.store.retract(
        query, reason=reason, retracted_by=by, is_dry_run=is_dry_run
    )
    if not is_dry_run:
        service.lookup.expire()
    # the counts include all; only the lists are cut
    return replace(
        retracted,
        suspects=retracted.suspects[:MAX_SUSPECTS],
        plans=retracted.plans[:MAX_SUSPECTS],
        peaks=retracted.peaks[:MAX_SUSPECTS],
    )


async def _answer_page(
    service: Service,
    name: Literal["facts", "plans"],
    listing: Listing[ListedFact],
    cursor: str | None,
    limit: int,
    filters: dict[str, Any],
) -> Response:
    """Respond with a page of documents, which are sent as stored text."""

    def read() -> Response:
        if filters["workload"]:
            filters["workload"] = service.store.complete_key(filters["workload"])
        entries, following = listing.read_page(service.store, cursor, limit, **filters)
        listed = ",".join(
            f'{{"id":"{entry.id}","is_trusted":{json.dumps(entry.is_trusted)},'
            f'"document":{entry.document}}}'
            for entry in entries
        )
        return make_json_response(
            f'{{"{name}":[{listed}],"next":{json.dumps(following)}}}'
        )

    # a database refuses a text that it cannot store; no document has it as its key
    if not is_storable(filters["workload"] or ""):
        return make_json_response(f'{{"{name}":[],"next":null}}')
    return await service.read_list(read)


def make_json_response(
    text: str, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return an answer that is JSON text already."""
    return Response(text, status, headers, "application/json")


# Routes of the last release: 410 Gone, with the reason; deleted in the next one.
removed = APIRouter(include_in_schema=False)

GONE = {
    "/demand": "misses are listed under /v1/demand; see 'feinsum tune --from-misses'",
    "/retractions": "retractions are listed under /v1/retractions",
}

NO_QUARANTINE = (
    "facts do not wait for confirmation any more: all are answered, those of trusted "
    "keys first; see 'feinsum keys trust' and 'feinsum db retract'"
)


@removed.get("/demand")
@removed.get("/retractions")
@removed.get("/v1/quarantine")
@removed.get("/v1/quarantine/plans")
@removed.post("/v1/facts/{record_id}/confirm")
def gone(request: Request) -> Response:
    reason = GONE.get(request.url.path, NO_QUARANTINE)
    return render_problem(
        request.scope, make_problem_response(410, NoSuchRouteError.code, reason)
    )
