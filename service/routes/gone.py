"""Routes of the last release: 410 Gone, with the reason; deleted in the next one."""

from __future__ import annotations

from fastapi import APIRouter, Response

from feinsum.errors import NoSuchRouteError
from feinsum.service.problems import problem

router = APIRouter(prefix="/v1", include_in_schema=False)

REASON = (
    "facts do not wait for confirmation any more: all are answered, those of trusted "
    "keys first; see 'feinsum keys trust' and 'feinsum db retract'"
)


@router.get("/quarantine")
@router.get("/quarantine/plans")
@router.post("/facts/{record_id}/confirm")
def gone() -> Response:
    return problem(410, NoSuchRouteError.code, REASON)
