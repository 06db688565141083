"""Problem documents (RFC 9457): every refusal, with the code of its error.

::

    RecordNotFoundError("no fact ...")  ->  404, application/problem+json
    {"type": "urn:feinsum:problem:record-not-found", "detail": "no fact ...", ...}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Route

from feinsum.errors import (
    CanonicalizationError,
    FeinsumError,
    ImplausibleError,
    InvalidEinsumError,
    InvalidRecordError,
    InvalidRequestError,
    NoSuchRouteError,
    NotAuthenticatedError,
    NotPermittedError,
    RecordNotFoundError,
    ServiceError,
    StoreUnavailableError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
    WrongContentTypeError,
    WrongMethodError,
)
from feinsum.service.pages.rendering import render_problem

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

INTERNAL = "internal"
"""The code of a bug; no error of the tree has it."""

STATUS: dict[type[FeinsumError], int] = {
    CanonicalizationError: 422,
    InvalidEinsumError: 422,
    InvalidRecordError: 422,
    InvalidRequestError: 422,
    NoSuchRouteError: 404,
    NotAuthenticatedError: 401,
    NotPermittedError: 403,
    RecordNotFoundError: 404,
    StoreUnavailableError: 503,
    TooLargeError: 413,
    TooManyRequestsError: 429,
    TooSlowError: 408,
    WrongContentTypeError: 415,
    WrongMethodError: 405,
}
"""The status of each error and its subclasses; 500 for any other."""

OF_HTTP: dict[int, type[ServiceError]] = {
    404: NoSuchRouteError,
    405: WrongMethodError,
    413: TooLargeError,
    415: WrongContentTypeError,
}

HEADERS: dict[type[FeinsumError], dict[str, str]] = {
    NotAuthenticatedError: {"WWW-Authenticate": 'Bearer realm="feinsum"'},
    StoreUnavailableError: {"Retry-After": "5"},
}

HIDDEN: dict[type[FeinsumError], str] = {
    StoreUnavailableError: "the database is unavailable; try again later. The service "
    "logged the reason under the id of the request",
    FeinsumError: "the service failed; it logged the reason under the id of the "
    "request",
}
"""Replacements for messages that are unforeseen or name the database."""

MAX_QUOTED = 200
"""Characters that are quoted of one argument."""

ALWAYS = (401, 403, 422, 429, 500, 503)
"""Problems of every route: of the middleware, of dependencies and of the database."""

OF_BODIES = (408, 413, 415)
"""Problems of every route that reads a body."""


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


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return descriptions of problems, for FastAPI's ``responses``."""
    # a reference, as a model would be described as application/json
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def make_problem_response(
    status: int,
    code: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    findings: Sequence[tuple[str, str, str]] = (),
) -> Response:
    """Make a response with a problem document; no cache keeps it.

    Args:
        status: HTTP status.
        code: stable code of the problem.
        detail: the message.
        headers: further headers of the answer.
        findings: findings in an implausible document: codes, what was given, what was
            expected.
    """
    document: dict[str, object] = {
        "type": f"urn:feinsum:problem:{code}",
        "title": code.replace("-", " "),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if findings:
        names = "code", "given", "expected"
        document["findings"] = [
            dict(zip(names, finding, strict=True)) for finding in findings
        ]
    # a proxy must not repeat a refusal to another caller
    sent = {"Cache-Control": "no-store", **(headers or {})}
    return Response(json.dumps(document), status, sent, MEDIA_TYPE)


def convert_error(
    error: Exception, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the problem document of an error; an unforeseen one is not quoted."""
    # its message may quote data or paths: the log has it, the caller does not
    if not isinstance(error, FeinsumError):
        return make_problem_response(500, INTERNAL, HIDDEN[FeinsumError], headers)
    kind = next((kind for kind in STATUS if isinstance(error, kind)), FeinsumError)
    sent = {**HEADERS.get(kind, {}), **(headers or {})}
    findings = error.findings if isinstance(error, ImplausibleError) else ()
    detail = HIDDEN.get(kind, str(error))
    return make_problem_response(
        STATUS.get(kind, 500), error.code, detail, sent, findings
    )


def add_problems(app: FastAPI, routes: Sequence[Route]) -> None:
    """Answer every refusal with a problem document, or with a page for browsers.

    Args:
        app: the application.
        routes: all routes of the application, for the header ``Allow``.
    """

    async def answer_error(request: Request, error: Exception) -> Response:
        answer = convert_error(error)
        # refusals are in the log of requests; failures need a line of their own
        if answer.status_code >= 500:
            logger.error("%s", error)
        return render_problem(request.scope, answer)

    async def answer_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:
            return await answer_error(request, InvalidRequestError(error.detail))
        kind = OF_HTTP.get(error.status_code, ServiceError)
        detail = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # Starlette names the methods of the first route with this path, not of all
            path = request.scope["path"]
            at_path = [route for route in routes if route.path_regex.match(path)]
            methods = {m for route in at_path for m in route.methods or ()}
            methods |= {"HEAD"} if "GET" in methods else set()
            headers["Allow"] = ", ".join(sorted(methods))
        answer = make_problem_response(error.status_code, kind.code, detail, headers)
        return render_problem(request.scope, answer)

    async def answer_bad_arguments(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        detail = "; ".join(
            f"{'.'.join(map(str, e['loc']))[:MAX_QUOTED]}: {e['msg'][:MAX_QUOTED]}"
            # five suffice to correct a request; a body may have thousands
            for e in error.errors()[:5]
        )
        return await answer_error(request, InvalidRequestError(detail))

    app.add_exception_handler(FeinsumError, answer_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(RequestValidationError, answer_bad_arguments)
