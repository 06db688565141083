"""A real server: workers, logs, hostile bytes, and a graceful end."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.records import to_json
from feinsum.service import make_key
from tests.db.factories import WORKLOAD, make_record, make_workload
from tests.service.running import PATIENCE_S, running

ENDED = (0, -signal.SIGTERM)
"""How a server may end that was told to; uvicorn hands the signal on."""

HUGE = 100 * 2**20


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return tmp_path_factory.mktemp("served") / "facts.sqlite"


@pytest.fixture(scope="module")
def secret(database):
    made, key = make_key("ci", "record")
    with open_serving_store(database) as store:
        store.add_key(key)
        store.add(make_record())
    return made


@pytest.fixture(scope="module")
def server(database, secret, tmp_path_factory):
    """Two workers that log all they can."""
    folder = tmp_path_factory.mktemp("logs")
    with running(str(database), folder, workers=2, log_level="debug") as found:
        yield found


def ask(server, path, *, secret=None, body=None):
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    answer = server.ask("GET" if body is None else "POST", path, body, headers)
    return answer.status, answer.body


def test_every_worker_knows_what_one_took(server, secret):
    """A fact that one worker took is answered by all, once they asked."""
    record = make_record(7, workload=make_workload(1))
    assert (
        ask(server, "/v1/facts", secret=secret, body=to_json(record).encode())[0] == 201
    )
    done = threading.Event()
    deadline = threading.Timer(PATIENCE_S, done.set)
    deadline.start()
    n_right = 0
    while n_right < 20 and not done.is_set():
        n_right = (
            n_right + 1 if ask(server, f"/v1/best/{record.workload}")[0] == 200 else 0
        )
    deadline.cancel()
    assert n_right == 20


def test_metrics_are_those_of_all_workers(server):
    """However requests are spread, their number is right.

    A worker counts a request after its response, so the last one may still be missing
    when another worker is scraped.
    """

    def count():
        text = ask(server, "/metrics")[1].decode()
        found = re.findall(r'requests_total\{[^}]*"/v1/devices"[^}]*\} (\S+)', text)
        return sum(map(float, found))

    before = count()
    for _ in range(20):
        assert ask(server, "/v1/devices")[0] == 200
    deadline = time.monotonic() + PATIENCE_S
    while count() < before + 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert count() == before + 20


def head(path="/v1/facts", **headers):
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_huge_body_is_refused_without_being_read(server):
    """Of 100 MB that are announced none is waited for; of a stream, little is taken."""
    answer = server.exchange(head(Content_Length=HUGE))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code": "too-large"' in answer
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as stream:
        stream.sendall(head(Transfer_Encoding="chunked"))
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            while sent < HUGE:
                stream.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
    assert sent < HUGE


def test_a_body_that_ends_early_harms_nobody(server):
    """A client that goes away in the middle of its body leaves the server as it was."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as stream:
        stream.sendall(head(Content_Length=1000) + b'{"workload"')
    assert ask(server, f"/v1/best/{WORKLOAD}")[0] == 200


@pytest.fixture(scope="module")
def ended(database, secret, tmp_path_factory):
    """What a server that was told to end had logged, and how it ended; what it was
    asked has keys, right and wrong, wherever one can be put.
    """
    wrong = make_key("eve", "admin")[0]
    settings = {"log_level": "debug", "demand_every_s": 3600}
    folder = tmp_path_factory.mktemp("ended")
    with running(str(database), folder, **settings) as server:
        for key in (secret, wrong):
            ask(server, f"/v1/best/{WORKLOAD}", secret=key)
            ask(server, f"/v1/best/{key}")
            ask(server, f"/v1/workloads?key={key}&cursor={key}")
            ask(server, "/v1/facts", secret=key, body=json.dumps({"k": key}).encode())
            ask(server, f"/nowhere/{key}", secret=key)
        server.exchange(
            f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Request-ID: from-proxy\r\n"
            f"X-Key: {secret}\r\n\r\n".encode()
        )
        assert ask(server, "/v1/best/wanted-1")[0] == 404
        code = server.end()
        return server.log.read_text(), wrong, code


def test_logs_are_json_with_ids_and_without_keys(ended, secret):
    """Wherever a key is put, and right or wrong, no log has it; the id is there."""
    text, wrong, _ = ended
    assert secret not in text
    assert wrong not in text
    assert secret.split("_", 2)[2] not in text
    lines = [json.loads(line) for line in text.splitlines()]
    asked = [line for line in lines if line["message"] == "request"]
    assert {line["key_id"] for line in asked} >= {secret.split("_")[1], None}
    assert any(line["request_id"] == "from-proxy" for line in asked)
    assert all({"time", "level", "path", "status", "ms"} <= set(line) for line in asked)


def test_the_end_is_graceful(ended, database):
    """SIGTERM ends a server, and the misses that it counted are written."""
    assert ended[-1] in ENDED
    with open_serving_store(database) as store:
        assert "wanted-1" in [demand.workload for demand in store.demands()]
