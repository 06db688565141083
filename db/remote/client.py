"""The client of a service: requests within time and size limits, errors by their codes.

The one door to urllib3, whose time-outs apply to single reads: a slow-drip server, or
name resolution, could block a reader forever. So each exchange runs in a thread of its
own; when its time is up, the connection is shut down, and nothing waits for that
thread. Redirects are not followed, so that no other host receives a key.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from feinsum.db.address import (
    Address,
    describe_sent_key,
    get_service_key,
    parse_address,
)
from feinsum.errors import (
    CanonicalizationError,
    FeinsumError,
    InvalidEinsumError,
    NoSuchRouteError,
    RecordNotFoundError,
    ServiceError,
    StoreError,
    StoreUnavailableError,
    make_error,
)
from feinsum.memory import get_remembered

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

MIN_TRUNCATED_BYTES = 1 << 18
"""A service that sent this much when time is up is not slow: its answer is large."""

MAX_WAITING_S = 120.0
"""How long to retry while a service is busy."""

MAX_ENTRIES, MAX_PAGES = 5_000_000, 50_000
"""Maximum entries of a list: a hostile service could list entries for ever."""

JSON = "application/json"
PROBLEM = "application/problem+json"

_CHUNK_BYTES = 65536
_REPORTED = (StoreError, ServiceError, CanonicalizationError, InvalidEinsumError)
"""The errors that a service may report; any other code becomes a ServiceError."""

_CODE = re.compile(r"[a-z]+(-[a-z]+){0,7}")
_MAX_LENGTH = 500
_BUSY = (429, 503)


class CutOffError(StoreUnavailableError):
    """A response exceeds the size limit or the time limit.

    Attributes:
        body: the part that arrived.
    """

    def __init__(self, message: str, body: bytes) -> None:
        super().__init__(message)
        self.body = body


@dataclass(frozen=True)
class ExchangeLimits:
    """The limits of one exchange.

    Attributes:
        total_s: from name resolution to the last byte.
        connect_s: share of this for one connection attempt.
        most_bytes: maximum size of a decompressed response body.
    """

    total_s: float
    connect_s: float
    most_bytes: int


PATIENT = ExchangeLimits(total_s=30.0, connect_s=10.0, most_bytes=64 * 2**20)
"""For commands, which need an answer, or the reason why there is none."""


@dataclass(frozen=True)
class HttpRequest:
    """A request; its headers may hold a key, and are not printed."""

    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Reply:
    """A complete response.

    Attributes:
        headers: headers by lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def media_type(self) -> str:
        content_type = self.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()


class Client:
    """Sends requests to one service.

    Args:
        key: key to send with every request; None for none.
        waiting_s: how long to retry while it is busy, at the times that it requests.
    """

    def __init__(
        self,
        address: Address,
        key: str | None = None,
        limits: ExchangeLimits = PATIENT,
        waiting_s: float = MAX_WAITING_S,
    ) -> None:
        self.address, self.key = address, key
        self.limits, self.waiting_s = limits, waiting_s

    @classmethod
    def of(cls, url: str) -> Client:
        """Return a client of the service at a URL that waits, with the key for it.

        Raises:
            StoreUnavailableError: if it is not the URL of a service, or if its key
                cannot be sent.
        """
        address = parse_address(url)
        return cls(address, get_service_key(address))

    def get(
        self,
        path: str,
        query: Mapping[str, str | int] | None = None,
        *,
        etag: str = "",
    ) -> Reply:
        """Read what is at a path; 304 only if an ``etag`` was given.

        Raises:
            StoreUnavailableError: if no answer comes.
            FeinsumError: the error reported by the service, by its code.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"If-None-Match": etag} if etag else {}
        return self._send("GET", target, headers, None, (200, 304) if etag else (200,))

    def post(
        self, path: str, document: str, *, expected: Collection[int] = (200,)
    ) -> Reply:
        """Send a JSON document; see :meth:`get`."""
        headers = {"Content-Type": JSON}
        return self._send("POST", path, headers, document.encode(), expected)

    def parse(self, reply: Reply) -> Any:
        """Parse the document of an answer.

        Raises:
            ServiceError: if it is not JSON.
        """
        if reply.media_type != JSON:
            media_type = _make_printable(reply.media_type) or "no type"
            raise self._foreign(f"answered with {media_type}, expected {JSON}")
        try:
            return json.loads(reply.body.decode())
        except (ValueError, RecursionError):
            raise self._foreign("answered with something that is not JSON") from None

    def iterate_pages(
        self, path: str, name: str, query: Mapping[str, str | int]
    ) -> Iterator[Any]:
        """Yield the entries of a list, which has that name in each page.

        Raises:
            ServiceError: for an answer that is not a page, or does not advance; after
                :data:`MAX_ENTRIES` entries.
            StoreUnavailableError, FeinsumError: see :meth:`get`.
        """
        cursor: str | None = ""
        seen: set[str | None] = {cursor}
        n_entries = 0
        while cursor is not None:
            parameters = {**query, "cursor": cursor} if cursor else query
            page = self.parse(self.get(path, parameters))
            try:
                entries, following = page[name], page["next"]
            except (KeyError, TypeError, IndexError):
                entries, following = None, None
            # A cursor that was seen before would make an endless loop.
            goes_on = following is None or (
                isinstance(following, str) and following not in seen and entries
            )
            if not isinstance(entries, list) or not goes_on:
                raise self._foreign(f"answered with no page of {name}")
            n_entries += len(entries)
            if n_entries > MAX_ENTRIES or len(seen) > MAX_PAGES:
                raise self._foreign(
                    f"listed {n_entries} {name} on {len(seen)} pages and has more, "
                    f"expected {MAX_ENTRIES} on {MAX_PAGES} at most"
                )
            seen.add(following)
            yield from entries
            cursor = following

    def exchange(self, request: HttpRequest) -> Reply:
        """Send a request once; see :func:`exchange`."""
        return exchange(self.address, request, self.limits)

    def _send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        expected: Collection[int],
    ) -> Reply:
        sent = {
            "Accept": JSON,
            "Accept-Encoding": "gzip",
            # each exchange has a connection of its own
            "Connection": "close",
            "User-Agent": "feinsum",
            **headers,
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        request = HttpRequest(method, self.address.prefix + target, sent, body)
        until = time.monotonic() + self.waiting_s
        while True:
            reply = self.exchange(request)
            if reply.status in expected:
                return reply
            # A service that is busy says when to come back; others have refused.
            pause_s = _parse_pause_s(reply)
            if pause_s is None or time.monotonic() + pause_s > until:
                raise self._make_refusal(reply)
            time.sleep(pause_s)

    def _make_refusal(self, reply: Reply) -> FeinsumError:
        """Return the error of a refusal, without the key that it may repeat."""
        code, detail = _parse_problem(reply)
        if self.key:
            # Messages are logged and pasted into reports.
            detail = detail.replace(self.key, "(the key)")
        if reply.status in (401, 403):
            detail = f"{detail}; {describe_sent_key(self.key)}"
        if code is None:
            redirect = ", a redirect" if 300 <= reply.status < 400 else ""
            return self._foreign(f"answered with status {reply.status}{redirect}")
        error = make_error(code, f"the service at {self.address} says: {detail}")
        # An error whose code and status disagree is not one of a feinsum service.
        is_miss = isinstance(error, (RecordNotFoundError, NoSuchRouteError))
        if not isinstance(error, _REPORTED) or is_miss != (reply.status == 404):
            return ServiceError(
                f"the service at {self.address} answered {reply.status}, {code}: "
                f"{detail}"
            )
        return error

    def _foreign(self, problem: str) -> ServiceError:
        return ServiceError(
            f"the service at {self.address} {problem}; check that this is the address "
            "of a feinsum service"
        )


def _parse_pause_s(reply: Reply) -> int | None:
    """Return after how many seconds a busy service accepts another request."""
    after = reply.headers.get("retry-after", "")
    is_number = after.isdecimal() and len(after) < 6
    return int(after) if reply.status in _BUSY and is_number else None


def _parse_problem(reply: Reply) -> tuple[str | None, str]:
    """Parse a problem document into its code, None without a valid one, and message."""
    if reply.media_type == PROBLEM:
        try:
            document = json.loads(reply.body)
            code, detail = document["code"], document["detail"]
            if _CODE.fullmatch(code):
                return code, _make_printable(detail)
        except (ValueError, RecursionError, KeyError, TypeError):
            pass
    return None, ""


def _make_printable(text: str) -> str:
    """Return foreign text as one line without control characters."""
    line = " ".join(text[: 4 * _MAX_LENGTH].split())[:_MAX_LENGTH]
    return "".join(c if c.isprintable() else "?" for c in line)


def exchange(address: Address, request: HttpRequest, limits: ExchangeLimits) -> Reply:
    """Send a request, and wait for the complete response.

    Raises:
        CutOffError: if it is too large.
        StoreUnavailableError: if it does not arrive, or not in time, or not completely.
    """
    call = _Call(address, request, limits)
    # A daemon: a thread that hangs in name resolution must not keep the process alive.
    thread = Thread(target=call.run, name="feinsum-remote", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailableError(
            _format_unreachable(address, f"cannot be queried ({error})")
        ) from None
    thread.join(limits.total_s)
    return call.outcome()


class _Call:
    """An exchange, run by one thread and awaited by another."""

    def __init__(
        self, address: Address, request: HttpRequest, limits: ExchangeLimits
    ) -> None:
        self._address, self._request, self._limits = address, request, limits
        self._connection: HTTPConnection | None = None
        self._is_over = self._is_connected = False
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self._body = bytearray()

    def run(self) -> None:
        try:
            self._connection = _make_connection(self._address, self._limits)
            self._reply = self._exchange(self._connection)
        except Exception as error:  # noqa: BLE001  (raised in the waiting thread)
            self._error = error
        finally:
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.close()

    def outcome(self) -> Reply:
        """Return the response; without one, close the connection and raise."""
        from urllib3.exceptions import TimeoutError as HTTPTimeoutError

        if self._reply is not None:
            return self._reply
        error, is_late = self._error, self._error is None
        # The socket's own limit may end a moment before that of the exchange.
        if self._is_connected and isinstance(error, (TimeoutError, HTTPTimeoutError)):
            is_late = True
        if is_late:
            self._close_connection()
            if len(body := bytes(self._body)) >= MIN_TRUNCATED_BYTES:
                problem = f"answers with more than {len(body)} bytes"
                raise CutOffError(_format_unreachable(self._address, problem), body)
            problem = f"did not answer within {self._limits.total_s * 1e3:.0f} ms"
        elif isinstance(error, CutOffError):
            raise error
        else:
            problem = _describe(error)
        raise StoreUnavailableError(_format_unreachable(self._address, problem))

    def _exchange(self, connection: HTTPConnection) -> Reply:
        request = self._request
        connection.connect()
        self._is_connected = True
        # The limit of one attempt to connect ends here; reads share the whole time.
        connection.timeout = self._limits.total_s
        # The caller may have given up before there was a socket to shut down.
        if self._is_over:
            raise TimeoutError
        connection.request(
            request.method,
            request.target,
            body=request.body,
            headers=request.headers,
            preload_content=False,
        )
        response = connection.getresponse()
        body, most_bytes = self._body, self._limits.most_bytes
        for chunk in response.stream(_CHUNK_BYTES, decode_content=True):
            body += chunk  # decompressed: a small response may unpack to gigabytes
            if len(body) > most_bytes:
                problem = f"answered with more than the {most_bytes} bytes that are"
                message = _format_unreachable(self._address, f"{problem} read")
                raise CutOffError(message, bytes(body))
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, headers, bytes(body))

    def _close_connection(self) -> None:
        """End the connection under the thread that reads from it."""
        self._is_over = True
        stream = self._connection.sock if self._connection is not None else None
        if stream is not None:
            with suppress(OSError):
                # SSLSocket's own would take the TLS object from the thread that reads
                socket.socket.shutdown(stream, socket.SHUT_RDWR)


class _Trusted:
    """The certificates that the system trusts; ``SSL_CERT_FILE`` names others."""

    def __init__(self) -> None:
        self.context = ssl.create_default_context()


def _make_connection(address: Address, limits: ExchangeLimits) -> HTTPConnection:
    from urllib3.connection import HTTPConnection, HTTPSConnection

    host, port, wait_s = address.host, address.port, limits.connect_s
    # No pool: a look-up makes one request, and processes of a build come and go.
    if address.scheme == "http":
        return HTTPConnection(host, port, timeout=wait_s)
    context = get_remembered(_Trusted).context
    return HTTPSConnection(host, port, timeout=wait_s, ssl_context=context)


def _describe(error: Exception | None) -> str:
    """Describe a failure, in our words or those of the system."""
    from urllib3 import exceptions

    match error:
        case exceptions.NameResolutionError():
            return "has an unknown host name"
        case exceptions.NewConnectionError():
            cause = error.__cause__
            reason = getattr(cause, "strerror", None) or type(cause).__name__
            return f"cannot be reached ({reason})"
        case exceptions.ConnectTimeoutError() | TimeoutError():
            return "did not accept the connection in time"
        case ssl.SSLCertVerificationError():
            return f"has an untrusted certificate ({error.verify_message})"
        case exceptions.HTTPError() | OSError() | ValueError():
            name = type(error).__name__
            return f"closed the connection, or is not a service ({name})"
    return f"cannot be queried ({type(error).__name__})"


def _format_unreachable(address: Address, problem: str) -> str:
    return (
        f"the service at {address} {problem}; check the address, the network, and "
        "that it runs"
    )
