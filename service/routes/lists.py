"""Routes of lists, and of the state and limits of the service."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, get_args

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict
from starlette.concurrency import run_in_threadpool

from feinsum.canonical import CANONICALIZER, FORM_VERSION
from feinsum.records import Demand, Policy, Processor
from feinsum.service import metrics
from feinsum.service.answers import MAX_FACTS
from feinsum.service.paging import (
    DEMANDS,
    DEVICES,
    MAX_LISTED,
    WORKLOADS,
    Cursor,
    Limit,
)
from feinsum.service.state import Reading, TheService

router = APIRouter(tags=["lists"])


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
    """A device as OpenCL reports it, and its processor, null if that is not known."""

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


class Demands(BaseModel):
    """A page of demands."""

    demands: list[Demand]
    next: str | None


class Capabilities(BaseModel):
    """Versions and limits of this service; the limits are settings of the same names.

    Attributes:
        confirmations: 0, since no fact waits; removed in the next release.
    """

    # every answer has all of them
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    version: str = version("feinsum")
    form_version: str = FORM_VERSION
    canonicalizer: str = CANONICALIZER
    policies: list[str] = list(get_args(Policy))
    anonymous_read: bool
    anonymous_record: bool
    confirmations: int = 0
    max_body_bytes: int
    max_batch: int
    max_page: int = MAX_LISTED
    max_facts: int = MAX_FACTS
    max_age_s: int


class State(BaseModel):
    """The state of a healthy service; otherwise, a problem document is sent."""

    status: str


@router.get("/v1/workloads", response_model=Workloads)
def workloads(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Any:
    """List workloads by key."""
    page, following = WORKLOADS.read_page(service.store, cursor, limit)
    return {"workloads": page, "next": following}


@router.get("/v1/devices", response_model=Devices)
def devices(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Any:
    """List devices by id."""
    page, following = DEVICES.read_page(service.store, cursor, limit)
    return {"devices": page, "next": following}


@router.get("/v1/demand", response_model=Demands)
async def demand(
    service: TheService, _: Reading, cursor: Cursor = None, limit: Limit = 100
) -> Any:
    """List unanswered workloads, most wanted first."""
    # the list has the misses of this worker as well
    await service.misses.flush()
    page, following = await run_in_threadpool(
        DEMANDS.read_page, service.store, cursor, limit
    )
    return {"demands": page, "next": following}


@router.get("/v1/capabilities", response_model=Capabilities)
def capabilities(service: TheService) -> Any:
    """Return versions and limits of this service; needs no key."""
    return service.settings


@router.get("/healthz")
async def healthz() -> State:
    """Check that the process runs."""
    return State(status="ok")


@router.get("/readyz")
async def readyz(service: TheService) -> State:
    """Check that the database responds and accepts facts."""
    # the query of look-ups, without their cache
    await service.lookup.refresh()
    # a database that cannot be written must get no traffic either
    await run_in_threadpool(service.store.check_room)
    return State(status="ready")


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
def metrics_page() -> Response:
    """Return metrics in the text format of Prometheus."""
    return Response(metrics.render_metrics(), media_type=metrics.CONTENT_TYPE)
