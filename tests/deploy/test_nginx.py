"""The shipped configuration of nginx, run by nginx, before a real service."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.records import to_json
from feinsum.service import Settings, make_key
from tests.db.factories import WORKLOAD, make_record, make_workload
from tests.deploy.proxy import CLIENT, SHIPPED, Proxy, needs_nginx, proxied
from tests.service.running import PATIENCE_S, Server, free_port, running

pytestmark = needs_nginx

BEST = f"/v1/best/{WORKLOAD}"
KEYS = {scope: make_key(scope, scope) for scope in ("read", "record")}


HALF_A_BODY = (
    b"POST /v1/facts HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
)


def bearer(scope: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[scope][0]}"}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("proxied") / "facts.sqlite"
    with open_serving_store(path) as store:
        store.add(make_record())
        for _, key in KEYS.values():
            store.add_key(key)
    return str(path)


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(
        database, tmp_path_factory.mktemp("service"), trusted_proxies="127.0.0.1"
    ) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxied(server.port, tmp_path_factory.mktemp("nginx")) as found:
        yield found


def logged(log: Path, request_id: str) -> list[dict[str, object]]:
    """What a log has of a request; a line may still be on its way."""
    deadline = time.monotonic() + PATIENCE_S
    found: list[dict[str, object]] = []
    while not found and time.monotonic() < deadline:
        lines = [line for line in log.read_text().splitlines() if request_id in line]
        found = [json.loads(line) for line in lines]
    return found


def is_problem(body: bytes, status: int, code: str) -> bool:
    problem = json.loads(body)
    assert set(problem) == {"type", "title", "status", "detail", "code"}
    assert problem["type"] == f"urn:feinsum:problem:{code}"
    return (problem["status"], problem["code"]) == (status, code)


def test_clients_get_tls_and_nothing_else(proxy: Proxy) -> None:
    """The certificate is verified; without TLS one is sent to where it is."""
    answer = proxy.ask("/readyz")
    assert (answer.status, json.loads(answer.body)) == (200, {"status": "ready"})
    assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
    plain = proxy.ask_plainly("/v1/best/k?device=d")
    assert plain.status == 308
    assert plain.headers["Location"].endswith("/v1/best/k?device=d")
    with pytest.raises(URLError) as refused:
        urlopen(f"https://localhost:{proxy.port}/readyz", timeout=PATIENCE_S)
    assert isinstance(refused.value.reason, ssl.SSLCertVerificationError)


def test_address_and_id_of_a_request_are_in_both_logs(
    proxy: Proxy, server: Server
) -> None:
    """The address is that of the client; an id that does harm is replaced."""
    answer = proxy.ask("/v1/devices", {"X-Request-ID": "build-17"})
    assert answer.headers.get_all("X-Request-ID") == ["build-17"]
    for log in (proxy.log, server.log):
        (line,) = logged(log, "build-17")
        assert (line["address"], line["path"]) == (CLIENT, "/v1/devices")
        assert line["status"] == 200
    made = proxy.ask("/v1/devices", {"X-Request-ID": 'x" y'}).headers["X-Request-ID"]
    assert len(made) == 32
    assert logged(proxy.log, made)
    assert logged(server.log, made)


def test_an_address_cannot_be_claimed(proxy: Proxy, server: Server) -> None:
    """What a client says of its own address does not count."""
    claim = {"X-Forwarded-For": "203.0.113.9", "X-Request-ID": "claim-1"}
    proxy.ask("/v1/devices", claim)
    (line,) = logged(server.log, "claim-1")
    assert line["address"] == CLIENT


def test_a_key_in_a_path_is_in_no_log(proxy: Proxy, server: Server) -> None:
    """Neither in that of requests nor in that of errors, whatever becomes of it."""
    secret = f"feinsum_0123abcd_{'x' * 43}"
    paths = (f"/v1/best/{secret}", f"/{secret}?{secret}", f"/a/{secret}/b/{secret}")
    for n, path in enumerate(paths):
        proxy.ask(path, {"X-Request-ID": f"key-{n}"})
        (line,) = logged(proxy.log, f"key-{n}")
        assert line["path"] == "(a path with a key)"
    for log in (proxy.log, proxy.log.with_name("errors.log"), server.log):
        assert secret not in log.read_text()


def test_an_answer_is_given_again_without_the_service(
    proxy: Proxy, server: Server
) -> None:
    """One question, two answers: the second is of the cache, under its own id."""
    first = proxy.ask(f"{BEST}?n=twice", {"X-Request-ID": "first-1"})
    second = proxy.ask(f"{BEST}?n=twice", {"X-Request-ID": "second-1"})
    assert (first.headers["X-Cache"], second.headers["X-Cache"]) == ("MISS", "HIT")
    assert (first.status, first.body) == (second.status, second.body)
    assert first.headers["ETag"] == second.headers["ETag"]
    assert second.headers.get_all("X-Request-ID") == ["second-1"]
    assert logged(proxy.log, "second-1")[0]["cache"] == "HIT"
    assert logged(server.log, "first-1")
    assert "second-1" not in server.log.read_text()


def test_who_has_the_answer_gets_304(proxy: Proxy) -> None:
    """The cache compares ETags by itself."""
    first = proxy.ask(f"{BEST}?n=known")
    again = proxy.ask(f"{BEST}?n=known", {"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["X-Cache"] == "HIT"


def test_both_forms_of_an_answer_are_kept_apart(proxy: Proxy) -> None:
    """Who takes gzip gets it, and nobody else; a key makes no difference."""
    url = f"{BEST}?n=forms"
    plain = proxy.ask(url)
    for names, cache in (("gzip", "MISS"), ("br, gzip", "HIT")):
        packed = proxy.ask(url, {"Accept-Encoding": names})
        assert packed.headers["X-Cache"] == cache
        assert packed.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
    again = proxy.ask(url, bearer("read"))
    assert (again.headers["X-Cache"], again.body) == ("HIT", plain.body)
    assert "Content-Encoding" not in again.headers


def test_a_fact_goes_through_and_is_found(proxy: Proxy) -> None:
    """Recording needs a key, through the proxy as without it."""
    record = make_record(5, workload=make_workload(9))
    sent = {"Content-Type": "application/json"}
    body = to_json(record).encode()
    refused = proxy.ask("/v1/facts", sent, method="POST", body=body)
    assert is_problem(refused.body, 401, "not-authenticated")
    sent |= bearer("record")
    assert proxy.ask("/v1/facts", sent, method="POST", body=body).status == 201
    found = proxy.ask(f"/v1/facts/{record.id}")
    assert found.body.decode() == to_json(record)


def test_what_nginx_refuses_is_a_problem_document(proxy: Proxy) -> None:
    """A body that is too long, announced or sent."""
    headers = {"Content-Type": "application/json", **bearer("record")}
    body = b" " * (Settings().max_body_bytes + 1)
    answer = proxy.ask("/v1/facts", headers, method="POST", body=body)
    assert answer.status == 413
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert is_problem(answer.body, 413, "too-large")


def test_the_text_of_an_einsum_fits_into_a_question(proxy: Proxy) -> None:
    """The longest text that the service takes is no URL too long."""
    text = "%20" * 20_000
    assert proxy.ask(f"{BEST}?n=long&text={text}").status == 200


def send(proxy: Proxy, request: bytes) -> bytes:
    """What comes back over TLS for raw bytes, until nginx ends the connection."""
    context = ssl.create_default_context(cafile=str(proxy.certificate))
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as stream,
    ):
        stream.sendall(request)
        try:
            while more := stream.recv(65536):
                answer += more
        except OSError:  # reset_timedout_connection
            pass
    return answer


def test_a_bad_head_never_reaches_the_service(proxy: Proxy, server: Server) -> None:
    """It is refused with a problem document."""
    for request_bytes in (
        b"GET /bad-head?q=" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /bad-head HTTP/1.1\r\nHost: localhost\r\nX: "
        + b"x" * 100_000
        + b"\r\n\r\n",
        b"GET /bad-head HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X%d: %s\r\n" % (k, b"x" * 4000) for k in range(100))
        + b"\r\n",
        b"NONSENSE\r\n\r\n",
    ):
        head, _, body = send(proxy, request_bytes).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert is_problem(body, 400, "invalid-request")
        assert b"python" not in head
        # other requests may still be logged; uvicorn logs what it cannot read
        logged = server.log.read_text()
        assert "/bad-head" not in logged
        assert "Invalid HTTP request" not in logged


def test_half_a_request_never_reaches_the_service(
    server: Server, tmp_path: Path
) -> None:
    """A connection that does not go on is ended, and no worker waits for it."""
    shorter = {"client_header_timeout 10s": "client_header_timeout 1s"}
    shorter |= {"client_body_timeout 15s": "client_body_timeout 1s"}
    before = len(server.log.read_text())
    with proxied(server.port, tmp_path, shorter) as proxy:
        for half in (b"GET / HTTP/1.1\r\nHost: local", HALF_A_BODY):
            answer = send(proxy, half)
            assert not answer or answer.startswith(b"HTTP/1.1 408 ")
            assert len(server.log.read_text()) == before
        assert proxy.ask("/readyz").status == 200


def test_costly_requests_without_a_key_have_a_rate_of_their_own(
    server: Server, tmp_path: Path
) -> None:
    """Beyond it they get 429; other requests, and requests with a key, go on."""
    slower = {"zone=feinsum_costly burst=100": "zone=feinsum_costly burst=2"}
    slower |= {"feinsum_costly:16m rate=20r/s": "feinsum_costly:16m rate=1r/m"}
    with proxied(server.port, tmp_path, slower) as proxy:
        statuses = [proxy.ask("/workloads").status for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = proxy.ask("/workloads?q=ij")
        assert is_problem(refused.body, 429, "too-many-requests")
        assert proxy.ask("/workloads", bearer("read")).status == 200
        assert proxy.ask("/devices").status == 200


def test_an_address_has_a_number_of_connections(server: Server, tmp_path: Path) -> None:
    """Requests of one address beyond it get 429, at the same time."""
    fewer = {"limit_conn feinsum_connections 256": "limit_conn feinsum_connections 1"}
    with proxied(server.port, tmp_path, fewer) as proxy:
        context = ssl.create_default_context(cafile=str(proxy.certificate))
        with (
            socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as stream,
        ):
            stream.sendall(HALF_A_BODY)
            refused = proxy.ask("/devices", address="127.0.0.1")
            while refused.status == 200:  # until nginx has read the other head
                refused = proxy.ask("/devices", address="127.0.0.1")
            assert is_problem(refused.body, 429, "too-many-requests")
            assert proxy.ask("/devices").status == 200


def test_metrics_are_for_this_machine(proxy: Proxy) -> None:
    """Others do not see them."""
    assert proxy.ask("/metrics").status == 403
    assert proxy.ask("/metrics", address="127.0.0.1").status == 200


def test_limits_are_those_of_the_service() -> None:
    """What nginx lets pass, the service takes as well."""
    text = SHIPPED.read_text()
    chosen = Settings()
    assert f"client_max_body_size {chosen.max_body_bytes};" in text
    assert f"rate={chosen.rate_per_s:.0f}r/s;" in text
    assert f"burst={chosen.burst} nodelay;" in text


def test_the_cache_answers_for_a_service_that_is_gone(
    database: str, tmp_path: Path
) -> None:
    """It goes on answering what it knows; a refusal that comes back is not hidden."""
    port = free_port()
    with proxied(port, tmp_path) as proxy:
        with running(database, tmp_path, port=port, max_age_s=1) as server:
            kept = proxy.ask(BEST)
            assert (kept.status, kept.headers["X-Cache"]) == (200, "MISS")
            server.end()
        answer = answer_other_than(proxy, "HIT")
        assert (answer.status, answer.headers["X-Cache"]) == (200, "STALE")
        assert answer.body == kept.body
        other = proxy.ask("/v1/best/never-asked")
        assert is_problem(other.body, 503, "store-unavailable")
        assert (other.status, other.headers["Retry-After"]) == (503, "5")
        with running(database, tmp_path, port=port, anonymous_read="false"):
            refused = proxy.ask(BEST)
            assert is_problem(refused.body, 401, "not-authenticated")
            for _ in range(2):
                private = proxy.ask(f"{BEST}?n=x", bearer("read"))
                assert (private.status, private.headers["X-Cache"]) == (200, "MISS")


def answer_other_than(proxy: Proxy, cache: str):
    """The first answer that is no longer fresh."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = proxy.ask(BEST)
        if answer.headers["X-Cache"] != cache:
            return answer
        time.sleep(0.1)
    raise AssertionError("the answer stayed fresh")
