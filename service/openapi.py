"""The description of the routes: answers with examples, and problems."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from feinsum.records import TuningRecord
from feinsum.service.problems import MEDIA_TYPE

SECURITY: dict[str, Any] = {"key": {"type": "http", "scheme": "bearer"}}
"""How a key is sent; every route but those of operation may need one."""

CODES = {
    401: "not-authenticated",
    403: "not-permitted",
    404: "record-not-found",
    408: "too-slow",
    413: "too-large",
    415: "wrong-content-type",
    422: "invalid-request",
    429: "too-many-requests",
    500: "internal",
    503: "store-unavailable",
}

# what middleware and dependencies answer on every route
ALWAYS = (401, 403, 422, 429, 500, 503)


class FactOf(BaseModel):
    """A fact with its content id.

    Attributes:
        is_trusted: whether a trusted key sent it, or nobody did.
    """

    id: str
    is_trusted: bool
    document: TuningRecord


class Problem(BaseModel):
    """A problem document (RFC 9457).

    Attributes:
        code: stable; one of ``docs/reference/errors.md``.
        findings: of a document that is not plausible, each with ``code``, ``given``
            and ``expected``.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    findings: list[dict[str, str]] = []


def answers(*more: int, **examples: Any) -> dict[int | str, dict[str, Any]]:
    """The answers of a route, for FastAPI.

    Args:
        more: statuses of problems that not every route has.
        examples: for ``status_200`` and the like an example, or None for an
            answer without a body.
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for name, example in examples.items():
        status = int(name.removeprefix("status_"))
        responses[status] = {"description": HTTPStatus(status).phrase}
        if example is not None:
            responses[status]["content"] = {"application/json": {"example": example}}
    # a route that reads a body may also wait for it in vain
    of_bodies = {408} if 413 in more else set()
    for status in sorted({*ALWAYS, *more, *of_bodies}):
        responses[status] = _problem(status)
    return responses


def json_body(schema: str, example: object) -> dict[str, Any]:
    """The body of a route that reads it itself, for FastAPI's ``openapi_extra``."""
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def parameter(name: str, description: str, example: str, **more: Any) -> dict[str, Any]:
    """A parameter of the query, described by hand."""
    schema = {"type": "string", **more}
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": schema,
        "example": example,
    }


def _problem(status: int) -> dict[str, Any]:
    code = CODES[status]
    example = {
        "type": f"urn:feinsum:problem:{code}",
        "title": code.replace("-", " "),
        "status": status,
        "detail": "what was given, what was expected, what to do",
        "code": code,
    }
    return {
        "description": HTTPStatus(status).phrase,
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": example,
            }
        },
    }
