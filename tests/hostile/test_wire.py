"""Bytes that come too slowly, too long, or as no HTTP cost a service nothing."""

from __future__ import annotations

import json
import socket

import pytest

from tests.hostile.live import Live, database, live
from tests.service.running import PATIENCE_S, running

__all__ = ["database", "live"]

HALVES = [
    b"GET /v1/devices HTTP/1.1\r\nHost: x\r\n",
    b"GET /v1/dev",
    b"G",
    b"\r\n",
    b"POST /v1/best:batch HTTP/1.1\r\nContent-Type: application/json\r\n%b"
    % b"Content-Length: 100\r\n\r\n{",
]


def connected(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def rest_of(stream: socket.socket) -> bytes:
    """All that comes until the service ends the connection."""
    found = b""
    try:
        while more := stream.recv(65536):
            found += more
    except ConnectionResetError:
        pass
    return found


def problem_in(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id" in head.lower()
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_is_sent_away(live, half):
    """What does not go on is ended, with a reason, and not kept for ever."""
    streams = [connected(live.server) for _ in range(20)]
    for stream in streams:
        stream.sendall(half)
    for stream in streams:
        with stream:
            assert problem_in(rest_of(stream)) == (408, "too-slow")
    assert live.ask("GET", "/healthz").status == 200


def test_a_head_that_drips_is_sent_away(live):
    """Nor does it help to send a byte from time to time."""
    with connected(live.server) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: ")
        stream.settimeout(0.2)
        for _ in range(1000):
            try:
                stream.sendall(b"x")
                if stream.recv(10):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("the connection stayed")


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nX: y\r\nZ"]
)
def test_a_long_head_is_not_taken(live, begin):
    """Of a head of 100 MB little is read, and none is kept."""
    before = live.most_memory()
    sent = 0
    with connected(live.server) as stream:
        try:
            stream.sendall(begin)
            for _ in range(1600):
                stream.sendall(b"y" * 65536)
                sent += 65536
        except ConnectionError:
            pass
    assert sent < 50 * 2**20
    assert live.most_memory() - before < 20 * 2**20


def test_many_long_headers_are_not_taken(live):
    """Nor are many headers, each of them short."""
    with connected(live.server) as stream:
        try:
            stream.sendall(b"GET / HTTP/1.1\r\n")
            for number in range(100):
                stream.sendall(b"X%d: %s\r\n" % (number, b"y" * 4096))
        except ConnectionError:
            return
        assert problem_in(rest_of(stream)) == (431, "too-large")


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
    ],
)
def test_what_is_no_http_gets_a_problem_document(live, bytes_):
    """The refusals of the parser have a code and an id, as all others."""
    with connected(live.server) as stream:
        stream.sendall(bytes_)
        assert problem_in(rest_of(stream)) == (400, "invalid-request")


def test_one_address_has_no_more_than_its_connections(tmp_path):
    """Beyond the limit a connection is refused; when one ends there is room again."""
    database = str(tmp_path / "facts.sqlite")
    settings = {"trusted_proxies": "192.0.2.1", "max_connections": 5, "header_s": 60}
    with running(database, tmp_path, **settings) as server:
        held = [connected(server) for _ in range(5)]
        for stream in held:
            stream.sendall(b"GET /healthz HTTP/1.1\r\n")
        with connected(server) as sixth:
            assert problem_in(rest_of(sixth)) == (429, "too-many-requests")
        for stream in held:
            stream.close()
        answer = None
        while answer is None or answer.status == 429:
            answer = Live(server, database).ask("GET", "/healthz")
        assert answer.status == 200
