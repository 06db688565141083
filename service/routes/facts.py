"""Facts: one by one, as a list, and who stands behind them."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from feinsum.db.server import ListedFact
from feinsum.errors import InvalidRequestError
from feinsum.records import Retraction, TuningRecord, to_json
from feinsum.service.examples import RECORD, document
from feinsum.service.openapi import FactOf, answers
from feinsum.service.paging import Cursor, Limit, key_after, next_cursor
from feinsum.service.receiving import receive
from feinsum.service.state import Reading, Recording, TheService
from feinsum.service.texts import is_storable

router = APIRouter(prefix="/v1", tags=["facts"])

CONTENT_ID = r"^[0-9a-f]{64}$"

FactId = Annotated[
    str, Path(pattern=CONTENT_ID, description="Content id.", examples=[RECORD.id])
]

LISTED = {"id": RECORD.id, "is_trusted": True, "document": document(RECORD)}

PAGE = {"facts": [LISTED], "next": None}

TRUST = {
    "id": RECORD.id,
    "is_trusted": False,
    "is_quarantined": False,
    "is_rejected": False,
    "recordings": [{"recorder": "ci", "received_at": "2026-01-31T12:00:01Z"}],
    "retractions": [],
}

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/TuningRecord"},
                "example": document(RECORD),
            }
        },
    }
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


@router.get(
    "/facts/{record_id}",
    summary="A fact by its content id; it never changes, but may be retracted",
    response_model=TuningRecord,
    responses=answers(404, status_200=document(RECORD)),
)
def fact(record_id: FactId, service: TheService, _: Reading) -> Response:
    age = f"max-age={service.settings.max_age_s}"
    headers = {"Cache-Control": f"{service.visibility}, {age}"}
    return json_of(to_json(service.store.get(record_id)), headers=headers)


@router.get(
    "/facts/{record_id}/trust",
    summary="Who recorded a fact, whether it is trusted, and who retracted it",
    responses=answers(404, status_200=TRUST),
)
def trust(record_id: FactId, service: TheService, _: Reading) -> TrustOf:
    return TrustOf.model_validate(service.store.trust(record_id), from_attributes=True)


@router.get(
    "/facts",
    summary="Facts by id; all, of a workload, or of a device",
    response_model=Facts,
    responses=answers(status_200=PAGE),
)
async def facts(
    service: TheService,
    _: Reading,
    workload: Annotated[str | None, Query(max_length=200)] = None,
    device: Annotated[str | None, Query(pattern=CONTENT_ID)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    after = key_after(cursor)
    if workload is not None and not is_storable(workload):
        return page_of("facts", (), limit)  # no fact can have it
    read = partial(service.store.page_of_facts, after, limit, workload, device)
    return await service.listed(lambda: page_of("facts", read(), limit))


@router.post(
    "/facts",
    status_code=201,
    summary="Store a fact: 201 if new, 200 if known",
    response_model=Received,
    responses=answers(413, 415, status_200=None)
    | {200: {"model": Received, "description": "Already stored."}},
    openapi_extra=BODY,
)
async def add_fact(
    request: Request, service: TheService, caller: Recording
) -> Response:
    record, receipt = await receive(TuningRecord, request, service, caller)
    kept = Received(id=record.id, is_retracted=receipt.is_retracted)
    place = {"Location": f"/v1/facts/{record.id}"}
    return json_of(kept.model_dump_json(), 201 if receipt.is_new else 200, place)


@router.post(
    "/facts:missing",
    summary="The given ids that are not stored",
    responses=answers(413, 415, status_200={"ids": [RECORD.id]}),
)
def missing(asked: Ids, service: TheService, _: Reading) -> Ids:
    most = service.settings.max_batch
    if len(asked.ids) > most:
        raise InvalidRequestError(
            f"{len(asked.ids)} ids were sent, expected {most} at most"
        )
    return Ids(ids=service.store.missing(asked.ids))


def page_of(
    name: Literal["facts", "plans"], found: tuple[ListedFact, ...], limit: int
) -> Response:
    """A page of facts, or of plan facts."""
    following = next_cursor(
        found, limit, lambda one: (one.id,), lambda one: len(one.document)
    )
    parts = ",".join(
        f'{{"id":"{one.id}","is_trusted":{json.dumps(one.is_trusted)},'
        f'"document":{one.document}}}'
        for one in found
    )
    return json_of(f'{{"{name}":[{parts}],"next":{json.dumps(following)}}}')


def json_of(
    text: str, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """An answer that is JSON text already."""
    return Response(text, status, headers, "application/json")
