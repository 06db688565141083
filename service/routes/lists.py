"""Lists: workloads, devices with their limits, and what is in demand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from feinsum.errors import RecordNotFoundError
from feinsum.records import (
    DevicePeaks,
    Processor,
    to_json,
)
from feinsum.service.examples import DEVICE, FORM, PEAKS, document
from feinsum.service.openapi import answers
from feinsum.service.paging import (
    Cursor,
    Limit,
    from_cursor,
    key_after,
    next_cursor,
)
from feinsum.service.receiving import receive
from feinsum.service.state import Reading, Recording, TheService

router = APIRouter(prefix="/v1", tags=["lists"])

WORKLOAD = {"key": FORM.key, "text": FORM.text, "n_facts": 12}

LISTED_DEVICE = {"id": DEVICE.id, "device": document(DEVICE), "n_facts": 384}

WANTED = {
    "workload": FORM.key,
    "workload_text": FORM.text,
    "device": DEVICE.id,
    "count": 17,
    "n_callers": 3,
    "first_seen": "2026-01-30T08:00:00Z",
    "last_seen": "2026-01-31T12:00:00Z",
}

DeviceId = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{64}$", description="Content id.", examples=[DEVICE.id]),
]

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/DevicePeaks"},
                "example": document(PEAKS),
            }
        },
    }
}


Page = TypeVar("Page", bound=BaseModel)


class Workload(BaseModel):
    """A workload, its text as first recorded, and how many facts it has."""

    key: str
    text: str
    n_facts: int


class Workloads(BaseModel):
    """A page of workloads."""

    workloads: list[Workload]
    next: str | None


class HardwareOf(BaseModel):
    """A device as OpenCL reports it, and its processor if that was recorded."""

    platform: str
    name: str
    vendor: str
    kind: str
    architecture: str
    compute_units: int
    processor: Processor | None = None


class DeviceOf(BaseModel):
    """A device, and how many facts were measured there."""

    id: str
    device: HardwareOf
    n_facts: int


class Devices(BaseModel):
    """A page of devices."""

    devices: list[DeviceOf]
    next: str | None


class DemandFor(BaseModel):
    """How often a workload was asked for in vain, and by how many callers."""

    workload: str
    workload_text: str | None
    device: str
    count: int
    n_callers: int = 1
    first_seen: datetime
    last_seen: datetime


class Demands(BaseModel):
    """A page of demands."""

    demands: list[DemandFor]
    next: str | None


@router.get(
    "/workloads",
    summary="Workloads by key",
    responses=answers(status_200={"workloads": [WORKLOAD], "next": None}),
)
def workloads(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Workloads:
    found = service.store.page_of_workloads(key_after(cursor), limit)
    following = next_cursor(
        found, limit, lambda one: (one.key,), lambda one: len(one.text)
    )
    return _listed(Workloads, workloads=found, next=following)


@router.get(
    "/devices",
    summary="Devices by id",
    responses=answers(status_200={"devices": [LISTED_DEVICE], "next": None}),
)
def devices(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Devices:
    found = service.store.page_of_devices(key_after(cursor), limit)
    following = next_cursor(
        found, limit, lambda one: (one.id,), lambda one: one.n_characters
    )
    return _listed(Devices, devices=found, next=following)


@router.get(
    "/demand",
    summary="Unanswered workloads, most wanted first",
    responses=answers(status_200={"demands": [WANTED], "next": None}),
)
async def demand(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Demands:
    after = from_cursor(cursor, int, int, str, str) if cursor else None
    await service.misses.flush()
    found = await run_in_threadpool(service.store.demands, after, limit)
    following = next_cursor(
        found, limit, lambda one: one.sort_key, lambda one: len(one.workload_text or "")
    )
    return _listed(Demands, demands=found, next=following)


@router.get(
    "/peaks/{device_id}",
    summary="The latest measured limits of a device; those of trusted keys first",
    response_model=DevicePeaks,
    responses=answers(404, status_200=document(PEAKS)),
)
def peaks(device_id: DeviceId, service: TheService, _: Reading) -> Response:
    found = service.store.peaks(device_id)
    if found is None:
        raise RecordNotFoundError(f"no limits are known for the device {device_id}")
    return Response(to_json(found), media_type="application/json")


@router.post(
    "/peaks",
    status_code=201,
    summary="Store measured limits: 201 if new, 200 if known",
    response_class=Response,
    responses=answers(413, 415, status_200=None, status_201=None),
    openapi_extra=BODY,
)
async def add_peaks(
    request: Request, service: TheService, caller: Recording
) -> Response:
    """They count if no trusted key sent others, or if the key is trusted."""
    _, receipt = await receive(DevicePeaks, request, service, caller)
    return Response(status_code=201 if receipt.is_new else 200)


def _listed(kind: type[Page], **content: Any) -> Page:
    return kind.model_validate(content, from_attributes=True)
