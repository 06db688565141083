"""Bodies that come slowly, and bytes that are no HTTP, cost a service nothing.

Heads that come slowly, long heads and many connections are nginx's to refuse; see
``tests/deploy/test_nginx.py``.
"""

from __future__ import annotations

import json
import socket

import pytest

from tests.hostile.live import database, live
from tests.service.running import PATIENCE_S

__all__ = ["database", "live"]

pytestmark = pytest.mark.parametrize(
    "database", ["sqlite"], indirect=True, scope="module"
)
"""No body is read so far that the kind of database counts."""

HALF_A_BODY = (
    b"POST /v1/best:batch HTTP/1.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def read_to_end(stream: socket.socket) -> bytes:
    """All that comes until the service ends the connection."""
    answer = b""
    try:
        while more := stream.recv(65536):
            answer += more
    except ConnectionResetError:
        pass
    return answer


def test_half_a_body_is_refused_in_time(live):
    """A body that does not go on is 408 with an id, and its connection ends."""
    streams = [connect(live.server) for _ in range(20)]
    for stream in streams:
        stream.sendall(HALF_A_BODY)
    for stream in streams:
        with stream:
            head, _, body = read_to_end(stream).partition(b"\r\n\r\n")
            assert b" 408 " in head.splitlines()[0]
            assert b"x-request-id" in head.lower()
            assert json.loads(body)["code"] == "too-slow"
    assert live.ask("GET", "/healthz").status == 200


def test_what_is_no_http_is_refused(live):
    """Whatever bytes come, the answer is 400, and the service goes on."""
    for request_bytes in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"\x80\x04\x95pickle\r\n\r\n",
    ):
        with connect(live.server) as stream:
            stream.sendall(request_bytes)
            assert read_to_end(stream).startswith(b"HTTP/1.1 400 ")
        assert live.ask("GET", "/healthz").status == 200


def test_hostile_paths_are_refused(live):
    """Nothing but a refusal comes back."""
    for head in (
        b"GET /v1/best/" + b"k" * 100_000,
        b"GET /v1/facts/..%2f..%2fetc%2fpasswd",
        b"GET //v1/best/../../x",
        b"GET /v1/best/\xff\xfe",
    ):
        answer = live.server.exchange(head + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert live.ask("GET", "/healthz").status == 200
