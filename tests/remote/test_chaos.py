"""Whatever a service does, the kernel comes back, soon, and with one warning."""

from __future__ import annotations

import logging
import socket
import warnings

import pytest

from feinsum import FeinsumWarning, retrieve
from feinsum.db import open_store
from feinsum.retrieval import explain, look_up
from tests.remote import chaos as c
from tests.remote.chaos import chaos
from tests.remote.conftest import forget
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction

KEY = "fk_0123456789abcdef-secret"

FAILURES = {
    "500": c.answering("500 No", "no", "text/plain"),
    "503": c.answering("503 Busy", "{}", Retry_After="3600"),
    "429": c.refusing(429, "too-many-requests", "wait", Retry_After="3600"),
    "garbage": c.saying(b"\x00\xff\xfe garbage \r\n" * 100),
    "nothing": c.saying(b""),
    "wrong content type": c.answering("200 OK", "<html>sign in</html>", "text/html"),
    "truncated body": c.answering("200 OK", '{"workload": ', length=5000),
    "truncated chunks": c.saying(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nff\r\n{}"
    ),
    "reset": c.resetting,
    "expired key": c.refusing(401, "not-authenticated", f"the key {KEY} expired"),
    "no scope": c.refusing(403, "not-permitted", "the key does not open this"),
    "redirect": c.answering("302 Found", "", Location="http://127.0.0.1:1/v1"),
    "another 404": c.answering("404 Not Found", "no page", "text/plain"),
    "an answer of another": c.answering("304 Not Modified", ""),
    "no JSON": c.answering("200 OK", "{'workload': 1}"),
    "100 MB": c.endless,
    "bomb": c.bomb,
    "endless head": c.saying(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000),
    "only informs": c.saying(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
}

HANGS = {
    "black hole": c.silent,
    "slow drip of the body": c.DRIP_OF_BODY,
    "slow drip of the head": c.DRIP_OF_HEAD,
}


@pytest.fixture
def local():
    """A fact in the user's own database, which no service can take away."""
    record = fact_of(reduction(), speedup=2.0)
    with open_store() as store:
        store.add(record)
    return record


@pytest.fixture
def remote(monkeypatch):
    """Sets the service and a key, and is another process from then on."""
    monkeypatch.setenv("FEINSUM_REMOTE_KEY", KEY)

    def be(url):
        monkeypatch.setenv("FEINSUM_REMOTE", url)
        forget()

    return be


def retrieved(caplog):
    """Whether the kernel is unchanged, what is warned of, and what the log says."""
    caplog.clear()
    kernel = reduction().kernel
    with caplog.at_level(logging.INFO), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unit = retrieve(kernel)
    told = [str(w.message) for w in caught if issubclass(w.category, FeinsumWarning)]
    logged = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert KEY not in "".join([*told, *caplog.messages])
    return unit is kernel, told, logged


def is_nowhere_kept(folder):
    return all(
        KEY.encode() not in path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize(
    "name",
    [
        "500",
        "429",
        "garbage",
        "truncated chunks",
        "expired key",
        "bomb",
        "only informs",
    ],
)
def test_a_failing_service_breaks_no_build(name, remote, caplog, tmp_path):
    """One warning, one connection; then neither this nor another process asks."""
    with chaos(FAILURES[name]) as server:
        remote(server.url)
        is_unchanged, told, logged = retrieved(caplog)
        assert is_unchanged
        assert len(told) == len(logged) == server.n_connections == 1
        assert "no fact is recorded" in told[0]
        is_unchanged, told, logged = retrieved(caplog)
        assert (is_unchanged, len(logged), server.n_connections) == (True, 0, 1)
        forget()
        is_unchanged, told, logged = retrieved(caplog)
        assert (is_unchanged, len(logged), server.n_connections) == (True, 1, 1)
        assert is_nowhere_kept(tmp_path)


@pytest.mark.parametrize("behave", HANGS.values(), ids=HANGS)
def test_a_service_that_hangs_is_left(behave, remote, caplog, monkeypatch):
    """The client hangs up before all is sent, and does not ask again."""
    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "300")
    with chaos(behave) as server:
        remote(server.url)
        is_unchanged, told, logged = retrieved(caplog)
        assert (is_unchanged, len(told), len(logged)) == (True, 1, 1)
        assert server.hung_up.wait(c.PATIENCE_S / 2)
        assert server.n_sent < 10**5
        retrieved(caplog)
        forget()
        retrieved(caplog)
        assert server.n_connections <= 1


def test_where_nobody_listens_nobody_asks_again(remote, caplog):
    """Connection refused: when somebody listens, within a minute he is not asked."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    remote(f"http://127.0.0.1:{port}")
    is_unchanged, told, logged = retrieved(caplog)
    assert (is_unchanged, len(told), len(logged)) == (True, 1, 1)
    assert "cannot be reached" in logged[0].getMessage()
    with chaos(c.silent, port=port) as server:
        retrieved(caplog)
        forget()
        retrieved(caplog)
        assert server.n_connections == 0


@pytest.mark.parametrize("name", ["500", "100 MB"])
def test_a_failing_service_hides_no_layer(name, remote, local):
    """The fact of the user serves, and the explanation says what was passed over."""
    with chaos(FAILURES[name]) as server:
        remote(server.url)
        found = look_up(reduction().kernel)
        assert found.applied == (local.spec,)
        assert f"layer remote ({server.url}): skipped, because" in str(found)


@pytest.mark.parametrize("name", ["expired key", "garbage"])
def test_a_service_that_is_named_and_fails_is_told_of(name, remote, caplog):
    """``database=URL``: the warning says why the kernel is unchanged."""
    with chaos(FAILURES[name]) as server:
        remote("")
        kernel = reduction().kernel
        with pytest.warns(FeinsumWarning, match=server.url) as caught:
            assert retrieve(kernel, database=server.url) is kernel
        assert len(caught) == 1
        assert retrieve(kernel, database=server.url, on_miss="return") is kernel
        assert server.n_connections == 1
        assert "not looked up" in explain(kernel, database=server.url)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FEINSUM_REMOTE", "facts.example"),
        ("FEINSUM_REMOTE", "https://user:word@facts.example"),
        ("FEINSUM_REMOTE_BUDGET_MS", "soon"),
        ("FEINSUM_REMOTE_BUDGET_MS", "-1"),
        ("FEINSUM_REMOTE_KEY", "two words"),
        ("FEINSUM_REMOTE_KEY", "line\r\nX: y"),
        ("FEINSUM_REMOTE", "http://facts.example"),
    ],
)
def test_settings_that_cannot_work_break_no_build(
    variable, value, remote, caplog, monkeypatch
):
    """Nothing is sent; one warning names the variable, or says what is wrong."""
    with chaos(FAILURES["500"]) as server:
        remote(server.url)
        monkeypatch.setenv(variable, value)
        is_unchanged, told, logged = retrieved(caplog)
        assert (is_unchanged, len(told), server.n_connections) == (True, 1, 0)
        assert len(logged) == 1
        assert "word@" not in caplog.text
