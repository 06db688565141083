"""Documents that are sent and answered: facts, plans, and limits of devices."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from feinsum.db.server import ListedFact
from feinsum.errors import (
    InvalidRequestError,
    NoSuchRouteError,
    RecordNotFoundError,
)
from feinsum.records import DevicePeaks, PlanRecord, Retraction, TuningRecord, to_json
from feinsum.service.examples import DEVICE, PEAKS, PLAN, RECORD, document
from feinsum.service.openapi import FactOf, answers, json_body
from feinsum.service.paging import Cursor, Limit, key_after, next_cursor
from feinsum.service.problems import problem
from feinsum.service.state import Reading, Recording, Service, TheService
from feinsum.service.texts import is_storable

router = APIRouter(prefix="/v1")

CONTENT_ID = r"^[0-9a-f]{64}$"

FactId = Annotated[
    str, Path(pattern=CONTENT_ID, description="Content id.", examples=[RECORD.id])
]

PlanId = Annotated[
    str, Path(pattern=CONTENT_ID, description="Content id.", examples=[PLAN.id])
]

DeviceId = Annotated[
    str, Path(pattern=CONTENT_ID, description="Content id.", examples=[DEVICE.id])
]

WorkloadFilter = Annotated[str | None, Query(max_length=200)]

LISTED_FACT = {"id": RECORD.id, "is_trusted": True, "document": document(RECORD)}

LISTED_PLAN = {"id": PLAN.id, "is_trusted": True, "document": document(PLAN)}

TRUST = {
    "id": RECORD.id,
    "is_trusted": False,
    "is_quarantined": False,
    "is_rejected": False,
    "recordings": [{"recorder": "ci", "received_at": "2026-01-31T12:00:01Z"}],
    "retractions": [],
}


class Facts(BaseModel):
    """A page of facts."""

    facts: list[FactOf]
    next: str | None


class Received(BaseModel):
    """The outcome for a fact that was sent.

    Attributes:
        is_quarantined: false; without it from the next release.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": RECORD.id,
                "is_quarantined": False,
                "is_retracted": False,
            }
        }
    )

    id: str
    is_quarantined: bool = False
    is_retracted: bool


class Ids(BaseModel):
    """Content ids of facts."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"ids": [RECORD.id]}}
    )

    ids: Annotated[
        list[Annotated[str, Field(pattern=CONTENT_ID)]], Field(fail_fast=True)
    ]


class Recorded(BaseModel):
    """Who sent a fact, and when."""

    recorder: str
    received_at: datetime


class TrustOf(BaseModel):
    """Who stands behind a fact.

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


@router.get(
    "/facts/{record_id}",
    tags=["facts"],
    summary="A fact by its content id; it never changes, but may be retracted",
    response_model=TuningRecord,
    responses=answers(404, status_200=document(RECORD)),
)
def fact(record_id: FactId, service: TheService, _: Reading) -> Response:
    # a fact never changes, but it may be retracted
    age = f"max-age={service.settings.max_age_s}"
    headers = {"Cache-Control": f"{service.visibility}, {age}"}
    return json_response(to_json(service.store.get(record_id)), headers=headers)


@router.get(
    "/facts/{record_id}/trust",
    tags=["facts"],
    summary="Who recorded a fact, whether it is trusted, and who retracted it",
    responses=answers(404, status_200=TRUST),
)
def trust(record_id: FactId, service: TheService, _: Reading) -> TrustOf:
    return TrustOf.model_validate(service.store.trust(record_id), from_attributes=True)


@router.get(
    "/facts",
    tags=["facts"],
    summary="Facts by id; all, of a workload, or of a device",
    response_model=Facts,
    responses=answers(status_200={"facts": [LISTED_FACT], "next": None}),
)
async def facts(
    service: TheService,
    _: Reading,
    workload: WorkloadFilter = None,
    device: Annotated[str | None, Query(pattern=CONTENT_ID)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    after = key_after(cursor)
    read = partial(service.store.page_of_facts, after, limit, workload, device)
    return await _page(service, "facts", read, workload, limit)


@router.post(
    "/facts",
    tags=["facts"],
    status_code=201,
    summary="Store a fact: 201 if new, 200 if known",
    response_model=Received,
    responses=answers(413, 415, status_200=None)
    | {200: {"model": Received, "description": "Already stored."}},
    openapi_extra=json_body("TuningRecord", document(RECORD)),
)
async def add_fact(
    request: Request, service: TheService, caller: Recording
) -> Response:
    record, receipt = await service.receive(TuningRecord, request, caller)
    received = Received(id=record.id, is_retracted=receipt.is_retracted)
    location = {"Location": f"/v1/facts/{record.id}"}
    status = 201 if receipt.is_new else 200
    return json_response(received.model_dump_json(), status, location)


@router.post(
    "/facts:missing",
    tags=["facts"],
    summary="The given ids that are not stored",
    responses=answers(413, 415, status_200={"ids": [RECORD.id]}),
)
def missing(request: Ids, service: TheService, _: Reading) -> Ids:
    # the same bound as of a batch, so that one setting limits a request
    max_ids = service.settings.max_batch
    if len(request.ids) > max_ids:
        raise InvalidRequestError(
            f"{len(request.ids)} ids were sent, expected {max_ids} at most"
        )
    return Ids(ids=service.store.missing(request.ids))


@router.get(
    "/plans",
    tags=["plans"],
    summary="Plans by id; all, or of an einsum or a program",
    response_model=Plans,
    responses=answers(status_200={"plans": [LISTED_PLAN], "next": None}),
)
async def plans(
    service: TheService,
    _: Reading,
    workload: WorkloadFilter = None,
    trusted: Annotated[bool, Query(description="Only trusted ones.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    read = partial(
        service.store.page_of_plans,
        key_after(cursor),
        limit,
        workload,
        only_trusted=trusted,
    )
    return await _page(service, "plans", read, workload, limit)


@router.get(
    "/plans/{record_id}",
    tags=["plans"],
    summary="A plan fact by its content id",
    response_model=PlanRecord,
    responses=answers(404, status_200=document(PLAN)),
)
def recorded_plan(record_id: PlanId, service: TheService, _: Reading) -> Response:
    return json_response(to_json(service.store.plan(record_id)))


@router.post(
    "/plans",
    tags=["plans"],
    status_code=201,
    summary="Store a plan fact: 201 if new, 200 if known",
    response_class=Response,
    responses=answers(413, 415, status_200=None, status_201=None),
    openapi_extra=json_body("PlanRecord", document(PLAN)),
)
async def add_plan(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """The steps of the plan are counted again; a fact with other counts is refused."""
    _, receipt = await service.receive(PlanRecord, request, caller)
    return Response(status_code=201 if receipt.is_new else 200)


@router.get(
    "/peaks/{device_id}",
    tags=["lists"],
    summary="The latest measured limits of a device; those of trusted keys first",
    response_model=DevicePeaks,
    responses=answers(404, status_200=document(PEAKS)),
)
def peaks(device_id: DeviceId, service: TheService, _: Reading) -> Response:
    limits = service.store.peaks(device_id)
    if limits is None:
        raise RecordNotFoundError(f"no limits are known for the device {device_id}")
    return json_response(to_json(limits))


@router.post(
    "/peaks",
    tags=["lists"],
    status_code=201,
    summary="Store measured limits: 201 if new, 200 if known",
    response_class=Response,
    responses=answers(413, 415, status_200=None, status_201=None),
    openapi_extra=json_body("DevicePeaks", document(PEAKS)),
)
async def add_peaks(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """They count if no trusted key sent others, or if the key is trusted."""
    _, receipt = await service.receive(DevicePeaks, request, caller)
    return Response(status_code=201 if receipt.is_new else 200)


async def _page(
    service: Service,
    name: Literal["facts", "plans"],
    read: Callable[[], tuple[ListedFact, ...]],
    workload: str | None,
    limit: int,
) -> Response:
    # a database refuses a text that it cannot store; no document can have it
    if workload is not None and not is_storable(workload):
        return _page_of(name, (), limit)
    return await service.read_list(lambda: _page_of(name, read(), limit))


def _page_of(
    name: Literal["facts", "plans"], listed: tuple[ListedFact, ...], limit: int
) -> Response:
    """A page of documents, which are stored as the text that is sent."""
    following = next_cursor(
        listed, limit, lambda entry: (entry.id,), lambda entry: len(entry.document)
    )
    entries = ",".join(
        f'{{"id":"{entry.id}","is_trusted":{json.dumps(entry.is_trusted)},'
        f'"document":{entry.document}}}'
        for entry in listed
    )
    return json_response(f'{{"{name}":[{entries}],"next":{json.dumps(following)}}}')


def json_response(
    text: str, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer that is JSON text already."""
    return Response(text, status, headers, "application/json")


# Routes of the last release: 410 Gone, with the reason; deleted in the next one.
removed = APIRouter(prefix="/v1", include_in_schema=False)

REASON = (
    "facts do not wait for confirmation any more: all are answered, those of trusted "
    "keys first; see 'feinsum keys trust' and 'feinsum db retract'"
)


@removed.get("/quarantine")
@removed.get("/quarantine/plans")
@removed.post("/facts/{record_id}/confirm")
def gone() -> Response:
    return problem(410, NoSuchRouteError.code, REASON)
