"""The REST service: tuning records by key, over HTTP.

It needs no code generator and no OpenCL. Answers and bodies are the JSON
documents of :mod:`feinsum.records`; errors are problem documents (RFC 9457)
with the codes of :mod:`feinsum.errors`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from feinsum.canonical import WorkloadKey
from feinsum.db import Database, opened_store
from feinsum.errors import (
    FeinsumError,
    InvalidRecordError,
    RecordNotFoundError,
    StoreUnavailableError,
)
from feinsum.records import RecordStore, TuningRecord, from_json, rank, to_json

__all__ = ["create_app"]

STATUS: dict[type[FeinsumError], int] = {
    InvalidRecordError: 422,
    RecordNotFoundError: 404,
    StoreUnavailableError: 503,
}


def create_app(database: Database = None) -> FastAPI:
    """The application over one database.

    Args:
        database: path, URL or store; the user's own by default.
    """
    app = FastAPI(title="feinsum", version="1", summary="Tuning records of einsums")
    _add_problem_documents(app)

    @contextmanager
    def store() -> Iterator[RecordStore]:
        with opened_store(database) as opened:
            yield opened

    @app.get("/healthz", summary="Whether the database answers")
    def healthz() -> dict[str, int]:
        with store() as records:
            return {"records": len(records)}

    @app.get("/v1/best/{key}", summary="The recipes of a workload, the best first")
    def best(key: str, device: str | None = None) -> Response:
        with store() as records:
            ranking = rank(records.query(WorkloadKey(key), device_id=device))
        if not ranking:
            raise RecordNotFoundError(f"no useful fact is recorded for {key!r}")
        return _json(f"[{','.join(to_json(record) for record in ranking)}]")

    @app.get("/v1/facts/{record_id}", summary="One record, immutable")
    def fact(record_id: str) -> Response:
        with store() as records:
            return _json(to_json(records.get(record_id)))

    @app.post("/v1/facts", summary="Keep a record; 201 if it is new, 200 if known")
    async def add_fact(request: Request) -> Response:
        record = from_json(TuningRecord, await request.body())
        with store() as records:
            is_new = records.add(record)
        return _json(json.dumps({"id": record.id}), 201 if is_new else 200)

    return app


def _add_problem_documents(app: FastAPI) -> None:
    async def of_ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, FeinsumError)
        status = next((s for kind, s in STATUS.items() if isinstance(error, kind)), 500)
        return _problem(error.code, str(error), status)

    async def of_http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _problem(f"http-{error.status_code}", error.detail, error.status_code)

    async def of_arguments(_request: Request, error: Exception) -> Response:
        return _problem("invalid-request", str(error), 422)

    app.add_exception_handler(FeinsumError, of_ours)
    app.add_exception_handler(HTTPException, of_http)
    app.add_exception_handler(RequestValidationError, of_arguments)


def _problem(code: str, detail: str, status: int) -> Response:
    document = {"type": code, "title": code, "detail": detail, "status": status}
    return _json(json.dumps(document), status, "application/problem+json")


def _json(text: str, status: int = 200, kind: str = "application/json") -> Response:
    return Response(text, status, media_type=kind)
