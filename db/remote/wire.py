"""One HTTP exchange, with a total time limit and a size limit.

The one door to urllib3, whose time-outs apply to single reads: a slow-drip server, or
name resolution, could block a reader forever. So the exchange runs in a separate
thread; when its time is up, the connection is shut down, and nobody waits for that
thread. Redirects are not followed.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING

from feinsum.db.address import Address
from feinsum.errors import StoreUnavailableError
from feinsum.memory import remembered

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

_CHUNK_BYTES = 65536
MIN_TRUNCATED_BYTES = 1 << 18
"""A service that sent this much when time is up is not slow: its answer is large."""


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
        raise _failure(address, f"cannot be queried ({error})") from None
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
            self._connection = _connection(self._address, self._limits)
            self._reply = self._exchanged(self._connection)
        except Exception as error:  # noqa: BLE001  (raised in the waiting thread)
            self._error = error
        finally:
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.close()

    def outcome(self) -> Reply:
        """Return the answer; without one, end the connection and raise why."""
        if self._reply is not None:
            return self._reply
        error = self._error
        # The socket's own limit may end a moment before that of the exchange.
        is_late = self._is_connected and _is_timeout(error)
        if error is None or is_late:
            self._hang_up()
            if len(body := bytes(self._body)) >= MIN_TRUNCATED_BYTES:
                problem = f"answers with more than {len(body)} bytes"
                raise CutOffError(_message(self._address, problem), body)
            within = f"{self._limits.total_s * 1e3:.0f} ms"
            raise _failure(self._address, f"did not answer within {within}")
        if isinstance(error, CutOffError):
            raise error
        raise _failure(self._address, _describe(error))

    def _exchanged(self, connection: HTTPConnection) -> Reply:
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
        for part in response.stream(_CHUNK_BYTES, decode_content=True):
            body += part  # decompressed: a small response may unpack to gigabytes
            if len(body) > most_bytes:
                problem = (
                    f"answered with more than the {most_bytes} bytes that are read"
                )
                raise CutOffError(_message(self._address, problem), bytes(body))
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Reply(response.status, headers, bytes(body))

    def _hang_up(self) -> None:
        """End the connection under the thread that reads from it."""
        self._is_over = True
        stream = self._connection.sock if self._connection is not None else None
        if stream is not None:
            with suppress(OSError):
                # SSLSocket's own would take the TLS object from the thread that reads
                socket.socket.shutdown(stream, socket.SHUT_RDWR)


def _connection(address: Address, limits: ExchangeLimits) -> HTTPConnection:
    from urllib3.connection import HTTPConnection, HTTPSConnection

    host, port, wait_s = address.host, address.port, limits.connect_s
    # No pool: a look-up makes one request, and processes of a build come and go.
    if address.scheme == "http":
        return HTTPConnection(host, port, timeout=wait_s)
    return HTTPSConnection(
        host, port, timeout=wait_s, ssl_context=remembered(_Trusted).context
    )


class _Trusted:
    """The certificates that the system trusts; ``SSL_CERT_FILE`` names others."""

    def __init__(self) -> None:
        self.context = ssl.create_default_context()


def _is_timeout(error: Exception | None) -> bool:
    from urllib3.exceptions import TimeoutError as HTTPTimeoutError

    return isinstance(error, (TimeoutError, HTTPTimeoutError))


def _describe(error: Exception) -> str:
    """Describe a failure, in our words or those of the system."""
    from urllib3.exceptions import (
        ConnectTimeoutError,
        HTTPError,
        NameResolutionError,
        NewConnectionError,
    )

    if isinstance(error, NameResolutionError):
        return "has an unknown host name"
    if isinstance(error, NewConnectionError):
        return f"cannot be reached ({_reason(error.__cause__)})"
    if isinstance(error, (ConnectTimeoutError, TimeoutError)):
        return "did not accept the connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has an untrusted certificate ({error.verify_message})"
    if isinstance(error, (HTTPError, OSError, ValueError)):
        return f"closed the connection, or is not a service ({type(error).__name__})"
    return f"cannot be queried ({type(error).__name__})"


def _reason(error: BaseException | None) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _failure(address: Address, problem: str) -> StoreUnavailableError:
    return StoreUnavailableError(_message(address, problem))


def _message(address: Address, problem: str) -> str:
    return (
        f"the service at {address} {problem}; check the address, the network, and "
        "that it runs"
    )
