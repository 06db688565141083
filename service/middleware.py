"""Steps of every request before its route: identify, log, limit, check the body.

    nginx -> RequestLog -> Admission -> Shortcut, gzip -> routes
             id, metrics,  caller, rate,
             log, problem  length and type of the body

nginx holds back slow clients, long heads and too many connections; see
``deploy/nginx.conf``. The checks here need the key of a caller, or must hold behind any
proxy. The log has paths but no query, header or body: no key gets into it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import math
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import islice
from typing import Any

from cachetools import LRUCache
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feinsum.errors import (
    InvalidRequestError,
    NotAuthenticatedError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
    WrongContentTypeError,
)
from feinsum.service.keys import KeyHolder, KeyRing
from feinsum.service.metrics import observe
from feinsum.service.pages.rendering import render_problem
from feinsum.service.problems import convert_error
from feinsum.service.settings import Settings
from feinsum.service.texts import without_secrets

logger = logging.getLogger(__name__)

CALLER = "feinsum.caller"

LOG_FIELDS = "fields"
"""Attribute of a log record with further fields."""

METHODS_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")

UNLIMITED_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths without rate limits: monitoring is never held back."""

STORING_PATHS = ("/v1/facts", "/v1/plans", "/v1/peaks")
"""Paths whose bodies are stored for good, and count towards the quota."""

DAY_S = 86400

MAX_VALUES = 10
"""Values that a body without a key may have for each workload of a full batch."""

MAX_CALLERS = 10_000
"""Rate limits in memory; the one used longest ago is forgotten first."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

# Possessive quantifiers: no input makes it backtrack.
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
"""A string of JSON, or a character that precedes another value."""


class RequestLog:
    """ASGI middleware that gives a request an id, and counts and logs its response.

    Whatever error the inner application raises becomes a problem document.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.perf_counter(), 0
        request_id = _request_id(dict(scope["headers"]))
        # HEAD is routed as GET, in a copy: the server itself leaves the body out of the
        # answer, by the method in the original.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                header = (b"x-request-id", request_id)
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(inner, receive, send_with_id)
        except Exception as error:
            # a problem document cannot replace an answer that has begun
            if status:
                raise
            headers = {}
            # a body may be unread, so that its connection ends
            if scope["method"] in METHODS_WITH_BODY:
                headers["Connection"] = "close"
            if isinstance(error, _RateLimitedError):
                headers["Retry-After"] = str(math.ceil(error.wait_s))
            refusal = convert_error(error, headers)
            if refusal.status_code >= 500:
                logger.exception(
                    "request failed", extra=_make_log_fields(inner, request_id)
                )
            await render_problem(scope, refusal)(scope, receive, send_with_id)
        finally:
            _record(scope["method"], inner, request_id, status, start)


class Admission:
    """ASGI middleware that refuses invalid keys, too many requests and large bodies.

    Args:
        keys: recognizes callers.
        settings: limits of requests, of bodies, and of what is stored.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, settings: Settings) -> None:
        self._app = app
        self._keys = keys
        self._settings = settings
        self._rate = RateLimit(settings.rate_per_s, settings.burst)
        # a bucket of one day: after a day without facts, all may come at once
        n_bytes = settings.untrusted_mb_a_day * 2**20
        self._quota = RateLimit(n_bytes / DAY_S, n_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers: dict[bytes, bytes] = dict(scope["headers"])
            # the log needs a caller also for a request that is refused
            scope[CALLER] = self._keys.anonymous
            # monitoring must see a service that is overloaded
            if scope["path"] not in UNLIMITED_PATHS:
                scope[CALLER] = await self._admit_caller(scope, headers)
            if scope["method"] in METHODS_WITH_BODY:
                body = await self._read_body(scope, headers, receive)
                receive = replay_body(body, receive)
        await self._app(scope, receive, send)

    async def _admit_caller(
        self, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> KeyHolder:
        """Recognize the caller of a request that is within the rate.

        The rate counts before the database is read: a key that was not seen lately
        takes from the address, so that guessing keys is limited as well.
        """
        authorization = headers.get(b"authorization")
        secret = None
        if authorization is not None:
            secret = _parse_secret(authorization, scope["method"])
        caller = self._keys.recall(secret) if secret else None
        payer = (caller and caller.key_id) or get_network(_get_address(scope))
        if wait_s := self._rate.wait_s(payer):
            raise _RateLimitedError(
                wait_s, f"too many requests; wait {wait_s:.3g} s, and ask in batches"
            )
        if caller is not None:
            return caller
        if authorization is None:
            return self._keys.anonymous
        if secret is None:
            raise NotAuthenticatedError(
                "an Authorization header of another kind was sent, expected "
                "'Authorization: Bearer KEY'"
            )
        return await run_in_threadpool(self._keys.recognize, secret)

    async def _read_body(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes:
        """Read the body, if it is short enough, of JSON, and within the quota."""
        max_bytes, body_s = self._settings.max_body_bytes, self._settings.body_s
        # before the first byte of the body is read
        check_length(headers, max_bytes)
        check_media_type(headers)
        try:
            # the limit is for the whole body: a byte from time to time does not extend
            # it
            async with asyncio.timeout(body_s):
                body = await read_body(receive, max_bytes)
        except TimeoutError:
            raise TooSlowError(
                f"the body did not arrive within {body_s:g} s; send less at once"
            ) from None
        caller = get_caller(scope)
        if not caller.key_id:
            # the owner of a key can be contacted; others are limited before parsing
            check_value_count(body, MAX_VALUES * self._settings.max_batch)
        is_limited = scope["path"] in STORING_PATHS and not caller.is_trusted
        if is_limited and (wait_s := self._quota.wait_s(caller.name, len(body))):
            raise _RateLimitedError(
                wait_s,
                f"{caller.name[:100]!r} sent as many documents as who is not trusted "
                f"may store in a day; wait {wait_s:.3g} s, or ask the operator to "
                "trust the key",
            )
        return body


def get_caller(scope: Scope) -> KeyHolder:
    """Return the caller of an admitted request."""
    caller: KeyHolder = scope[CALLER]
    return caller


def get_client_id(scope: Scope) -> str:
    """Return a name that distinguishes callers, for counting; without an address.

    Keys of one name are one client, and so are addresses of one network.
    """
    caller = get_caller(scope)
    if caller.key_id:
        return f"key {caller.name}"
    return f"address {_digest_start(get_network(_get_address(scope)))}"


class RateLimit:
    """A bucket of tokens for each caller.

    Args:
        rate_per_s: tokens that come back each second; 0 for no limit.
        burst: tokens of a full bucket.

    >>> now = iter([0.0, 0.0, 0.0, 0.5]).__next__
    >>> limit = RateLimit(rate_per_s=2, burst=2, clock=now)
    >>> [limit.wait_s("ann") for _ in range(4)]
    [0.0, 0.0, 0.5, 0.0]
    """

    def __init__(
        self,
        rate_per_s: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._clock = rate_per_s, burst, clock
        # callers choose their number; forgetting one gives it a full bucket, no more
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MAX_CALLERS)

    def wait_s(self, caller: str, n_tokens: int = 1) -> float:
        """Take tokens; return 0, or the seconds until there are that many."""
        if not self._rate:
            return 0.0
        now = self._clock()
        tokens, since = self._buckets.get(caller, (float(self._burst), now))
        # no timer refills the buckets: the time since the last request does
        tokens = min(float(self._burst), tokens + (now - since) * self._rate)
        # a bucket never has more than it can hold: larger requests take a full one
        price = float(min(n_tokens, self._burst))
        wait = 0.0 if tokens >= price else (price - tokens) / self._rate
        self._buckets[caller] = (tokens if wait else tokens - price, now)
        return wait


def get_network(address: str) -> str:
    """Return the network whose addresses share a limit.

    One subscriber has 2**64 addresses of IPv6, so that the first 64 bits count.

    >>> get_network("192.0.2.7"), get_network("2001:db8:1:2:3:4:5:6")
    ('192.0.2.7', '2001:db8:1:2::/64')
    >>> get_network("::ffff:192.0.2.7")
    '192.0.2.7'
    """
    try:
        parsed = ip_address(address)
    except ValueError:  # a proxy may send any text, of any length
        return _digest_start(address)
    # a dual-stack socket reports addresses of IPv4 in this form
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    if parsed.version == 6:
        return str(ip_network((parsed, 64), strict=False))
    return str(parsed)


def _digest_start(text: str) -> str:
    """Return the first sixteen digits of the digest of a text."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def check_length(headers: Mapping[bytes, bytes], max_bytes: int) -> None:
    """Refuse a body by the length that it announces, before any of it is read."""
    announced = headers.get(b"content-length", b"0")
    # fifteen digits: longer ones take long to convert
    if not announced.isdigit() or len(announced) > 15 or int(announced) > max_bytes:
        raise _make_size_error(announced.decode("latin-1")[:20], max_bytes)


def check_media_type(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body that is not JSON, or that is compressed."""
    has_body = b"transfer-encoding" in headers
    has_body |= headers.get(b"content-length", b"0") != b"0"
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    # a small compressed body may be a very large document
    if has_body and (kind != b"application/json" or coding != b"identity"):
        sent = b" ".join([kind, coding]).decode("latin-1")[:100]
        raise WrongContentTypeError(
            f"a body of the type {sent!r} was sent, expected application/json, "
            "not compressed"
        )


def check_value_count(body: bytes, max_values: int) -> None:
    """Refuse JSON with too many values, each of which takes more memory than its bytes.

    Args:
        body: the body of the request.
        max_values: maximum number of values; a text counts twice, once as a text and
            once by the comma after it.

    Raises:
        TooLargeError: if it has more.

    >>> check_value_count(b'["a, b", [1, 2]]', 5)
    >>> check_value_count(b'["a, b", [1, 2]]', 4)
    Traceback (most recent call last):
        ...
    feinsum.errors.TooLargeError: a body of more than 4 values was sent without a key;
    send less at once, or send a key
    """
    if len(body) > max_values and any(islice(_VALUE.finditer(body), max_values, None)):
        raise TooLargeError(
            f"a body of more than {max_values} values was sent without a key; send "
            "less at once, or send a key"
        )


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Read the body of a request; reading stops where it gets too long.

    Raises:
        TooLargeError: if it is longer than ``max_bytes``.
        InvalidRequestError: if the sender went away before its end.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidRequestError("the body is shorter than its Content-Length")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _make_size_error(f"more than {max_bytes}", max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a channel that repeats a body that was read, then continues."""
    is_sent = False

    async def receive_again() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


class _RateLimitedError(TooManyRequestsError):
    def __init__(self, wait_s: float, message: str) -> None:
        self.wait_s = wait_s
        super().__init__(message)


def _make_size_error(length: str, max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"a body of {length} bytes was sent, expected {max_bytes} at most; send less "
        "at once"
    )


def _parse_secret(authorization: bytes, method: str) -> str | None:
    r"""Return the key in a header; None if it is of another kind.

    A browser sends a key as the password of a person. It does so for every form of any
    site that posts here, so that counts for reading only.

    >>> (_parse_secret(b"Bearer key", "POST"),
    ...  _parse_secret(b"Basic YW5uOmtleQ==", "GET"))
    ('key', 'key')
    >>> _parse_secret(b"Basic YW5uOmtleQ==", "POST")
    >>> _parse_secret(b"Basic \xff\xfe", "GET")
    """
    scheme, _, credentials = authorization.decode("latin-1").strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials
    if scheme.lower() != "basic" or method not in ("GET", "HEAD"):
        return None
    try:
        pair = base64.b64decode(credentials.strip(), validate=True).decode("latin-1")
    except (binascii.Error, ValueError):  # raised for non-ASCII bytes, too
        return None
    return pair.partition(":")[2]


def _request_id(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the id that a proxy sent, if it is harmless, or a new one."""
    sent = headers.get(b"x-request-id", b"")
    return sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8).encode()


def _get_address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else "unknown"


def _record(
    method: str, scope: Scope, request_id: bytes, status: int, start: float
) -> None:
    """Count and log a request.

    Metrics have patterns of paths: labels that callers choose would be unbounded.
    """
    seconds = time.perf_counter() - start
    route = getattr(scope.get("route"), "path", None)
    # methods that no route has are chosen by callers
    label = method if route and status != 405 else "other"
    observe(label, route or "none", status, seconds)
    if logger.isEnabledFor(logging.INFO):
        fields = _make_log_fields(scope, request_id)
        fields[LOG_FIELDS] |= {
            "method": method, "status": status, "ms": round(seconds * 1e3, 3)
        }  # fmt: skip
        logger.info("request", extra=fields)


def _make_log_fields(scope: Scope, request_id: bytes) -> dict[str, dict[str, Any]]:
    caller: KeyHolder | None = scope.get(CALLER)
    return {
        LOG_FIELDS: {
            "request_id": request_id.decode(),
            "method": scope["method"],
            # a key that was pasted into an address must not get into the log
            "path": without_secrets(scope["path"])[:200],
            "address": _get_address(scope),
            "caller": caller.name if caller else None,
            "key_id": caller.key_id if caller else None,
        }
    }


class JsonFormatter(logging.Formatter):
    """A log record as a line: time, level, logger, message, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, LOG_FIELDS, {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document)


def configure_logs(level: str) -> None:
    """Send the logs of this process to standard error as :class:`JsonFormatter`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
