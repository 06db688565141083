"""The gate: what holds for every request, before any route sees it.

It gives each request an id, finds out who asks, holds back who asks too often
or sends too much, and turns what nothing foresaw into a problem document. When
the answer is sent it counts and logs it. The log has paths, but no query, no
header and no body: no key gets into it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import math
import re
import secrets
import time
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feinsum.errors import (
    NotAuthenticatedError,
    TooManyRequestsError,
    TooSlowError,
)
from feinsum.service.keys import Caller, KeyRing
from feinsum.service.limits import (
    RateLimit,
    check_length,
    check_media_type,
    check_values,
    network_of,
    read_body,
    replayed,
)
from feinsum.service.logs import FIELD
from feinsum.service.metrics import observe
from feinsum.service.pages.problem import as_asked
from feinsum.service.problems import problem_of
from feinsum.service.texts import without_secrets

logger = logging.getLogger(__name__)

CALLER = "feinsum.caller"

WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")

READING = ("GET", "HEAD")

FREE = ("/healthz", "/readyz", "/metrics")
"""Whoever watches the service is never held back."""

PRICES = {"/v1/best:batch": 10, "/v1/canonicalize": 20, "/workloads": 20}
"""How many requests one counts for of who has no key, by what it takes of a worker."""

STORING = ("/v1/facts", "/v1/plans", "/v1/peaks")
"""What is sent there is stored for good."""

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def caller_of(scope: Scope) -> Caller:
    """Who sent a request that passed the gate."""
    caller: Caller = scope[CALLER]
    return caller


def asker_of(scope: Scope) -> str:
    """A name that tells who asks from others, for counting; no address.

    Keys of one name are one asker, and so are addresses of one network.
    """
    caller = caller_of(scope)
    if caller.key_id:
        return f"key {caller.name}"
    network = network_of(_address(scope))
    return f"address {hashlib.sha256(network.encode()).hexdigest()[:16]}"


class Gate:
    """ASGI middleware; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        rate: RateLimit,
        max_body_bytes: int,
        max_values: int,
        body_s: float,
        quota: RateLimit,
    ) -> None:
        self._app = app
        self._keys = keys
        self._rate = rate
        self._max_body_bytes = max_body_bytes
        self._max_values = max_values
        self._body_s = body_s
        self._quota = quota

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        status, is_admitted = 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id),
                ]
            await send(message)

        try:
            receive = await self._admit(scope, headers, receive)
            is_admitted = True
            inner = _as_get(scope)
            try:
                await self._app(inner, receive, send_with_id)
            finally:
                # for HEAD, routing wrote into a copy
                scope.update(route=inner.get("route"))
        except Exception as error:
            # an answer has begun, which no problem document can replace
            if status:
                raise
            refusal = problem_of(error, _headers(error, is_admitted))
            if refusal.status_code >= 500:
                logger.exception("request failed", extra=_fields(scope, request_id))
            await as_asked(scope, refusal)(scope, receive, send_with_id)
        finally:
            self._done(scope, request_id, status, time.perf_counter() - start)

    async def _admit(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> Receive:
        """Let a request pass; what the routes receive of it."""
        scope[CALLER] = self._keys.anonymous
        if scope["path"] not in FREE:
            scope[CALLER] = await self._caller(scope, headers)
        if scope["method"] not in WITH_BODY:
            return receive
        check_length(headers, self._max_body_bytes)
        check_media_type(headers)
        try:
            async with asyncio.timeout(self._body_s):
                body = await read_body(receive, self._max_body_bytes)
        except TimeoutError:
            raise TooSlowError(
                f"the body did not arrive within {self._body_s:g} s; send less at once"
            ) from None
        caller = caller_of(scope)
        if not caller.key_id:
            check_values(body, self._max_values)
        if scope["path"] in STORING and not caller.is_trusted:
            wait_s = self._quota.wait_s(caller.name, len(body))
            if wait_s:
                raise _QuotaError(caller.name, wait_s)
        return replayed(body, receive)

    async def _caller(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        """Who asks; held back by key or, where no key is known yet, by address."""
        given = headers.get(b"authorization")
        secret = _secret(given, scope["method"]) if given is not None else None
        known = self._keys.recall(secret) if secret else None
        network = network_of(_address(scope))
        who = known.key_id or network if known else network
        n_tokens = 1 if known else PRICES.get(scope["path"], 1)
        wait_s = self._rate.wait_s(who, n_tokens)
        if wait_s:
            raise _TooSoonError(wait_s)
        if given is None:
            return self._keys.anonymous
        if secret is None:
            raise NotAuthenticatedError(
                "an Authorization header of another kind was sent, expected "
                "'Authorization: Bearer KEY'"
            )
        if known is None:
            return await run_in_threadpool(self._keys.recognize, secret)
        return known

    def _done(
        self, scope: Scope, request_id: bytes, status: int, seconds: float
    ) -> None:
        route = getattr(scope.get("route"), "path", None)
        method = scope["method"] if route and status != 405 else "other"
        observe(method, route or "none", status, seconds)
        if logger.isEnabledFor(logging.INFO):
            fields = _fields(scope, request_id)
            fields[FIELD] |= {"status": status, "ms": round(seconds * 1e3, 3)}
            logger.info("request", extra=fields)


class _TooSoonError(TooManyRequestsError):
    def __init__(self, wait_s: float, problem: str = "") -> None:
        self.wait_s = wait_s
        wait = f"wait {wait_s:.3g} s"
        super().__init__(problem or f"too many requests; {wait}, and ask in batches")


class _QuotaError(_TooSoonError):
    def __init__(self, name: str, wait_s: float) -> None:
        super().__init__(
            wait_s,
            f"{name[:100]!r} sent as many documents as who is not trusted may store in "
            f"a day; wait {wait_s:.3g} s, or ask the operator to trust the key",
        )


def _as_get(scope: Scope) -> Scope:
    """HEAD is answered as GET is; the server leaves the body out."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _secret(authorization: bytes, method: str) -> str | None:
    r"""The key in a header; None if it is of another kind.

    A browser sends it as the password of a person. It does so for every site that
    makes it ask, so that counts for reading only.

    >>> _secret(b"Bearer key", "POST"), _secret(b"Basic YW5uOmtleQ==", "GET")
    ('key', 'key')
    >>> _secret(b"Basic YW5uOmtleQ==", "POST")
    >>> _secret(b"Basic \xff\xfe", "GET")
    """
    kind, _, rest = authorization.decode("latin-1").strip().partition(" ")
    if kind.lower() == "bearer":
        return rest
    if kind.lower() != "basic" or method not in READING:
        return None
    try:
        pair = base64.b64decode(rest.strip(), validate=True).decode("latin-1")
    except (binascii.Error, ValueError):  # also for what is not of ASCII
        return None
    return pair.partition(":")[2]


def _headers(error: Exception, is_admitted: bool) -> dict[str, str]:
    """Headers of a refusal; a body may be left unread where one was not admitted."""
    found = {} if is_admitted else {"Connection": "close"}
    if isinstance(error, _TooSoonError):
        found["Retry-After"] = str(math.ceil(error.wait_s))
    return found


def _request_id(headers: dict[bytes, bytes]) -> bytes:
    """The id that a proxy gave, if it is harmless, or a new one."""
    given = headers.get(b"x-request-id", b"")
    return given if _ID.fullmatch(given) else secrets.token_hex(8).encode()


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else "unknown"


def _fields(scope: Scope, request_id: bytes) -> dict[str, dict[str, Any]]:
    caller: Caller | None = scope.get(CALLER)
    return {
        FIELD: {
            "request_id": request_id.decode(),
            "method": scope["method"],
            "path": without_secrets(scope["path"])[:200],
            "address": _address(scope),
            "caller": caller.name if caller else None,
            "key_id": caller.key_id if caller else None,
        }
    }
