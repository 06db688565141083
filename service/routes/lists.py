"""Lists: workloads, devices, and look-ups that were not answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from feinsum.records import Processor
from feinsum.service.examples import DEVICE, FORM, document
from feinsum.service.openapi import answers
from feinsum.service.paging import (
    Cursor,
    Limit,
    from_cursor,
    key_after,
    next_cursor,
)
from feinsum.service.state import Reading, TheService

router = APIRouter(prefix="/v1", tags=["lists"])

WORKLOAD = {"key": FORM.key, "text": FORM.text, "n_facts": 12}

LISTED_DEVICE = {"id": DEVICE.id, "device": document(DEVICE), "n_facts": 384}

LISTED_DEMAND = {
    "workload": FORM.key,
    "workload_text": FORM.text,
    "device": DEVICE.id,
    "count": 17,
    "n_callers": 3,
    "first_seen": "2026-01-30T08:00:00Z",
    "last_seen": "2026-01-31T12:00:00Z",
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
    page = service.store.page_of_workloads(key_after(cursor), limit)
    following = next_cursor(
        page, limit, lambda entry: (entry.key,), lambda entry: len(entry.text)
    )
    return _listed(Workloads, workloads=page, next=following)


@router.get(
    "/devices",
    summary="Devices by id",
    responses=answers(status_200={"devices": [LISTED_DEVICE], "next": None}),
)
def devices(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Devices:
    page = service.store.page_of_devices(key_after(cursor), limit)
    following = next_cursor(
        page, limit, lambda entry: (entry.id,), lambda entry: entry.n_characters
    )
    return _listed(Devices, devices=page, next=following)


@router.get(
    "/demand",
    summary="Unanswered workloads, most wanted first",
    responses=answers(status_200={"demands": [LISTED_DEMAND], "next": None}),
)
async def demand(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Demands:
    after = from_cursor(cursor, int, int, str, str) if cursor else None
    # the list has the misses of this worker as well
    await service.misses.flush()
    page = await run_in_threadpool(service.store.demands, after, limit)
    following = next_cursor(
        page,
        limit,
        lambda entry: entry.sort_key,
        lambda entry: len(entry.workload_text or ""),
    )
    return _listed(Demands, demands=page, next=following)


def _listed(kind: type[Page], **content: Any) -> Page:
    # store entries become models by their attributes
    return kind.model_validate(content, from_attributes=True)
