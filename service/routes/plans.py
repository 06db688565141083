"""Plans: what they moved and took, one by one and as a list."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel

from feinsum.records import PlanRecord, to_json
from feinsum.service.examples import PLAN, document
from feinsum.service.openapi import answers
from feinsum.service.paging import Cursor, Limit, key_after
from feinsum.service.receiving import receive
from feinsum.service.routes.facts import CONTENT_ID, json_of, page_of
from feinsum.service.state import Reading, Recording, TheService
from feinsum.service.texts import is_storable

router = APIRouter(prefix="/v1", tags=["plans"])

PlanId = Annotated[
    str, Path(pattern=CONTENT_ID, description="Content id.", examples=[PLAN.id])
]

LISTED = {"id": PLAN.id, "is_trusted": True, "document": document(PLAN)}

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/PlanRecord"},
                "example": document(PLAN),
            }
        },
    }
}


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
    "/plans",
    summary="Plans by id; all, or of an einsum or a program",
    response_model=Plans,
    responses=answers(status_200={"plans": [LISTED], "next": None}),
)
async def plans(
    service: TheService,
    _: Reading,
    workload: Annotated[str | None, Query(max_length=200)] = None,
    trusted: Annotated[bool, Query(description="Only trusted ones.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    if workload is not None and not is_storable(workload):
        return page_of("plans", (), limit)  # no plan can be of it
    read = partial(
        service.store.page_of_plans,
        key_after(cursor),
        limit,
        workload,
        only_trusted=trusted,
    )
    return await service.listed(lambda: page_of("plans", read(), limit))


@router.get(
    "/plans/{record_id}",
    summary="A plan fact by its content id",
    response_model=PlanRecord,
    responses=answers(404, status_200=document(PLAN)),
)
def recorded_plan(record_id: PlanId, service: TheService, _: Reading) -> Response:
    return json_of(to_json(service.store.plan(record_id)))


@router.post(
    "/plans",
    status_code=201,
    summary="Store a plan fact: 201 if new, 200 if known",
    response_class=Response,
    responses=answers(413, 415, status_200=None, status_201=None),
    openapi_extra=BODY,
)
async def add_plan(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """The steps of the plan are counted again; a fact with other counts is refused."""
    _, receipt = await receive(PlanRecord, request, service, caller)
    return Response(status_code=201 if receipt.is_new else 200)
