"""Routes about the service itself, for operators and clients."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, get_args

from fastapi import APIRouter, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from feinsum.canonical import CANONICALIZER, FORM_VERSION
from feinsum.records import Policy
from feinsum.service import metrics
from feinsum.service.answers import MAX_FACTS
from feinsum.service.openapi import answers
from feinsum.service.paging import MAX_LISTED
from feinsum.service.state import TheService

router = APIRouter(tags=["operation"])

CAPABILITIES: dict[str, Any] = {
    "version": "0.1.0",
    "form_version": FORM_VERSION,
    "canonicalizer": CANONICALIZER,
    "policies": list(get_args(Policy)),
    "anonymous_read": True,
    "anonymous_record": False,
    "confirmations": 0,
    "max_body_bytes": 1_000_000,
    "max_batch": 1000,
    "max_page": MAX_LISTED,
    "max_facts": MAX_FACTS,
    "max_age_s": 60,
}


class Capabilities(BaseModel):
    """Capabilities of this service.

    Attributes:
        confirmations: 0, for no fact waits; without it from the next release.
    """

    version: str
    form_version: str
    canonicalizer: str
    policies: list[str]
    anonymous_read: bool
    anonymous_record: bool
    confirmations: int
    max_body_bytes: int
    max_batch: int
    max_page: int
    max_facts: int
    max_age_s: int


class State(BaseModel):
    """The state of a healthy service; otherwise, a problem document is sent."""

    status: str


@router.get(
    "/v1/capabilities",
    summary="Versions and limits of this service; needs no key",
    responses=answers(status_200=CAPABILITIES),
)
def capabilities(service: TheService) -> Capabilities:
    settings = service.settings
    # limits are the settings of the same name
    configured = {
        name: getattr(settings, name)
        for name in Capabilities.model_fields
        if hasattr(settings, name)
    }
    current = CAPABILITIES | {"version": version("feinsum")} | configured
    return Capabilities.model_validate(current)


@router.get(
    "/healthz",
    summary="Whether the process runs",
    responses=answers(status_200={"status": "ok"}),
)
async def healthz() -> State:
    return State(status="ok")


@router.get(
    "/readyz",
    summary="Whether the database responds and accepts facts",
    responses=answers(status_200={"status": "ready"}),
)
async def readyz(service: TheService) -> State:
    # a query that takes the way of look-ups, without the cache
    await service.lookup.refresh()
    # a database that cannot be written must get no traffic either
    await run_in_threadpool(service.store.check_room)
    return State(status="ready")


@router.get(
    "/metrics",
    summary="Metrics in the text format of Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"example": "feinsum_requests_total 1"}}}
    },
)
def metrics_page() -> Response:
    return Response(metrics.page(), media_type=metrics.CONTENT_TYPE)
