"""HTTP as it comes from the wire: within limits of size and of time, proxy or not.

Who sends the head of a request too slowly, makes it too long, or does not read the
answer is sent away before any route sees it. What is refused here gets a problem
document, as everything that the service refuses.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from feinsum.errors import (
    InvalidRequestError,
    ServiceError,
    TooLargeError,
    TooManyRequestsError,
    TooSlowError,
)
from feinsum.service.limits import network_of
from feinsum.service.problems import problem
from feinsum.service.settings import read_settings

WRITE_S = 60.0
"""How long nothing of an answer may be read before its connection is ended."""


@dataclass(frozen=True)
class WireLimits:
    """Limits of one connection, and how many an address may have; 0 for any number."""

    header_s: float
    max_header_bytes: int
    max_connections: int
    proxies: frozenset[str]


@cache
def _limits() -> WireLimits:
    chosen = read_settings()
    proxies = frozenset(map(str.strip, chosen.trusted_proxies.split(",")))
    return WireLimits(
        chosen.header_s, chosen.max_header_bytes, chosen.max_connections, proxies
    )


_connections: Counter[str] = Counter()


class LimitedProtocol(HttpToolsProtocol):
    """The HTTP/1.1 of uvicorn, with limits; see the module."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = _limits()
        self._address = ""
        self._n_head_bytes = 0
        self._is_in_head = True
        self._timers: dict[str, TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        self._address = network_of(address)
        _connections[self._address] += 1
        most = self._limits.max_connections
        # all clients of a proxy have its address
        is_proxy = address in self._limits.proxies
        if most and not is_proxy and _connections[self._address] > most:
            error = f"more than {most} connections of one address; end some"
            self._refuse(429, TooManyRequestsError, error)
        else:
            self._start("head", self._limits.header_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        _connections[self._address] -= 1
        if _connections[self._address] <= 0:
            del _connections[self._address]
        for name in list(self._timers):
            self._stop(name)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._n_head_bytes += len(data)
        if self._is_in_head:
            # on a kept connection, the time starts with the first byte of a request
            self._start("head", self._limits.header_s, self._head_is_late)
        super().data_received(data)
        most = self._limits.max_header_bytes
        if self._is_in_head and self._n_head_bytes > most:
            error = f"the headers of a request have more than {most} bytes; send less"
            self._refuse(431, TooLargeError, error)

    def on_headers_complete(self) -> None:
        self._stop("head")
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:  # nobody waits for the rest
            self.transport.close()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head, self._n_head_bytes = True, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start("write", WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("write")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, InvalidRequestError, f"{msg} Expected HTTP/1.1")

    def _head_is_late(self) -> None:
        limit_s = self._limits.header_s
        error = f"the headers of a request did not arrive within {limit_s:g} s"
        self._refuse(408, TooSlowError, error)

    def _refuse(self, status: int, kind: type[ServiceError], detail: str) -> None:
        """Answer with a problem document, and end the connection."""
        if self.transport.is_closing():
            return
        answer = problem(status, kind.code, detail, {"Connection": "close"})
        answer.headers["X-Request-ID"] = secrets.token_hex(8)
        head = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
        head += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"", bytes(answer.body)]))
        self.transport.close()

    def _start(self, name: str, after_s: float, what: Callable[[], None]) -> None:
        """Start a timer, unless it runs already."""
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(after_s, what)

    def _stop(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
