"""Retractions: taking facts out of every look-up, and who did so, when and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from feinsum.errors import InvalidRecordError, InvalidRequestError
from feinsum.records import Retraction, RetractionQuery, from_json
from feinsum.records.document import instant
from feinsum.records.kinds import MAX_REASON
from feinsum.service.examples import FORM, PEAKS, PLAN, RECORD, RETRACTION, document
from feinsum.service.openapi import answers, json_body
from feinsum.service.paging import Cursor, Limit, from_cursor, next_cursor
from feinsum.service.routes.documents import FactId
from feinsum.service.state import Admin, Reading, Service, TheService

router = APIRouter(prefix="/v1", tags=["retractions"])

MAX_LISTED = 1000
"""Facts of each kind that are listed of those that are retracted."""

SUSPECT = {
    "id": RECORD.id,
    "workload": RECORD.workload,
    "workload_text": RECORD.workload_text,
    "transform": f"{RECORD.spec.name}@{RECORD.spec.version}",
    "device": RECORD.environment.device.id,
    "speedup": RECORD.measurement.speedup,
    "recorded_at": RECORD.recorded_at,
}

SUSPECT_PLAN = {
    "id": PLAN.id,
    "workload": PLAN.workload,
    "plan": PLAN.plan_id,
    "device": PLAN.fleet.device.id,
    "recorded_at": PLAN.recorded_at,
}

SUSPECT_PEAKS = {
    "id": PEAKS.id,
    "device": PEAKS.device.id,
    "bandwidth_bytes_per_s": PEAKS.bandwidth_bytes_per_s,
    "recorded_at": PEAKS.measured_at,
}

RETRACTED: dict[str, Any] = {
    "is_dry_run": False,
    "n_facts": 3,
    "n_shared": 0,
    "unknown": [],
    "suspects": [SUSPECT],
    "plans": [SUSPECT_PLAN],
    "peaks": [SUSPECT_PEAKS],
}

LISTED = {"id": RETRACTION.id, "document": document(RETRACTION)}

Words = Annotated[str, Field(max_length=MAX_REASON)]


class Asked(BaseModel):
    """Which facts, and whether they are retracted; at least one condition is needed.

    Attributes:
        ids: content ids, or at least their first 12 digits.
        recorders: facts that were sent with these names of keys and no others.
        transform: a name, or a name and a version.
        since: when the service received them, or else when they were measured.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "recorders": ["ci"],
                "since": "2026-01-31T12:00:00Z",
                "is_dry_run": True,
            }
        },
    )

    ids: Annotated[list[str], Field(max_length=1000)] = []
    workload: Annotated[Words | None, Field(examples=[FORM.key])] = None
    recorders: Annotated[list[Words], Field(max_length=100)] = []
    transform: Words | None = None
    since: Words | None = None
    reason: Words = ""
    # the harmless default: a mistake lists facts
    is_dry_run: bool = True


class SuspectOf(BaseModel):
    """A fact that is, or would be, retracted."""

    id: str
    workload: str
    workload_text: str
    transform: str
    device: str
    speedup: float
    recorded_at: datetime


class SuspectPlanOf(BaseModel):
    """A fact of a plan that is, or would be, retracted."""

    id: str
    workload: str
    plan: str
    device: str
    recorded_at: datetime


class SuspectPeaksOf(BaseModel):
    """Measured limits that are, or would be, retracted."""

    id: str
    device: str
    bandwidth_bytes_per_s: float
    recorded_at: datetime


class RetractedFacts(BaseModel):
    """Facts retracted, or to be; at most 1000 of each kind are listed.

    Attributes:
        n_shared: facts of these recorders that are kept, as others sent them too.
        unknown: ids of no fact here; they are retracted all the same.
    """

    is_dry_run: bool
    n_facts: int
    n_shared: int
    unknown: list[str]
    suspects: list[SuspectOf]
    plans: list[SuspectPlanOf] = []
    peaks: list[SuspectPeaksOf] = []


class RetractionOf(BaseModel):
    """A retraction with its content id."""

    id: str
    document: Retraction


class Retractions(BaseModel):
    """A page of retractions."""

    retractions: list[RetractionOf]
    next: str | None


@router.get(
    "/retractions",
    summary="Retractions, latest first",
    responses=answers(status_200={"retractions": [LISTED], "next": None}),
)
def retractions(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Retractions:
    page = service.store.retractions(before(cursor), limit)
    following = next_cursor(page, limit, lambda entry: (entry.retracted_at, entry.id))
    return Retractions(
        retractions=[RetractionOf(id=entry.id, document=entry) for entry in page],
        next=following,
    )


@router.post(
    "/retractions",
    status_code=201,
    summary="Store a retraction made elsewhere: 201 if new, 200 if known",
    response_class=Response,
    responses=answers(413, 415, status_200=None, status_201=None),
    openapi_extra=json_body("Retraction", document(RETRACTION)),
)
async def add_retraction(request: Request, service: TheService, _: Admin) -> Response:
    retraction = from_json(Retraction, await request.body())
    is_new = await run_in_threadpool(service.store.add, retraction)
    service.lookup.expire()
    return Response(status_code=201 if is_new else 200)


@router.post(
    "/facts:retract",
    summary="Retract facts by id, workload, recorder, transform and time",
    responses=answers(404, 413, 415, status_200={**RETRACTED, "is_dry_run": True}),
)
def retract(request: Asked, service: TheService, caller: Admin) -> RetractedFacts:
    query = RetractionQuery(
        ids=tuple(request.ids),
        workload=request.workload,
        recorders=tuple(request.recorders),
        transform=request.transform,
        since=request.since,
    )
    return _retract(service, query, request.reason, caller.name, request.is_dry_run)


@router.delete(
    "/facts/{record_id}",
    summary="Retract a fact immediately",
    responses=answers(404, 415, status_200=RETRACTED),
)
def delete_fact(
    record_id: FactId,
    service: TheService,
    caller: Admin,
    reason: Annotated[
        str, Query(min_length=1, max_length=MAX_REASON, examples=["wrong clock"])
    ],
) -> RetractedFacts:
    service.store.trust(record_id)  # refuses an unknown one
    query = RetractionQuery(ids=(record_id,))
    return _retract(service, query, reason, caller.name, is_dry_run=False)


def before(cursor: str | None) -> tuple[datetime, str] | None:
    """The time and the id of the retraction that a cursor names.

    Raises:
        InvalidRequestError: if it names none.
    """
    if not cursor:
        return None
    time, last = from_cursor(cursor, str, str)
    try:
        return instant(time), last
    except InvalidRecordError as error:
        raise InvalidRequestError(f"the cursor names no time: {error}") from None


def _retract(
    service: Service, query: RetractionQuery, reason: str, by: str, is_dry_run: bool
) -> RetractedFacts:
    retracted = service.store.retract(
        query, reason=reason, retracted_by=by, is_dry_run=is_dry_run
    )
    if not is_dry_run:
        service.lookup.expire()
    # counts are of all; only the lists are cut
    listed = replace(
        retracted,
        suspects=retracted.suspects[:MAX_LISTED],
        plans=retracted.plans[:MAX_LISTED],
        peaks=retracted.peaks[:MAX_LISTED],
    )
    return RetractedFacts.model_validate(listed, from_attributes=True)
