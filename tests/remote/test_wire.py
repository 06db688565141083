"""One exchange: all of an answer, or an error, within its limits."""

from __future__ import annotations

import gzip
import shutil
import ssl
import subprocess
import threading
import tracemalloc

import pytest

from feinsum.db.address import parse_address
from feinsum.db.remote.client import ExchangeLimits, HttpRequest, exchange
from feinsum.errors import StoreUnavailableError
from tests.remote import chaos as c
from tests.remote.chaos import chaos
from tests.remote.conftest import forget

PATIENT = ExchangeLimits(60.0, 60.0, c.MIB)
HASTY = ExchangeLimits(0.3, 0.1, c.MIB)


def ask(server, limits=PATIENT, **headers):
    return exchange(
        parse_address(server.url), HttpRequest("GET", "/x?y", headers), limits
    )


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_an_answer_comes_whole(coding):
    """Decompressed, with its status, and its headers in small letters."""
    content = b"[1, 2]" * 1000
    body = gzip.compress(content) if coding == "gzip" else content
    behave = c.answering("418 Teapot", body, Content_Encoding=coding, ETag='"x"')
    with chaos(behave) as server:
        reply = ask(server, Accept="x")
        assert (reply.status, reply.body) == (418, content)
        assert (reply.headers["etag"], reply.media_type) == ('"x"', "application/json")
        assert server.requests[0].startswith("GET /x?y HTTP/1.1\r\n")


@pytest.mark.parametrize("behave", [c.endless, c.bomb], ids=["100 MB", "bomb"])
def test_no_more_is_read_than_the_limit(behave):
    """However it is packed; the client hangs up, and memory does not grow with it."""
    with chaos(behave) as server:
        tracemalloc.start()
        try:
            with pytest.raises(StoreUnavailableError, match="more than the 1048576"):
                ask(server)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 16 * c.MIB


@pytest.mark.parametrize("behave", [c.silent, c.DRIP_OF_BODY, c.DRIP_OF_HEAD])
def test_no_more_is_waited_than_the_limit(behave):
    """However often a byte comes; the connection is ended, and so is its thread."""
    with chaos(behave) as server:
        # a busy machine may be late to take the connection; that counts as well
        late = "did not answer within 300 ms|did not accept the connection in time"
        with pytest.raises(StoreUnavailableError, match=late):
            ask(server, HASTY)
        assert server.hung_up.wait(c.PATIENCE_S / 2)
    for thread in threading.enumerate():
        if thread.name == "feinsum-remote":
            thread.join(c.PATIENCE_S)
            assert not thread.is_alive()


def test_a_name_that_is_not_known_is_told():
    """Names that end in .invalid are never known."""
    with pytest.raises(StoreUnavailableError, match="unknown host name"):
        exchange(
            parse_address("http://x.invalid"), HttpRequest("GET", "/", {}), PATIENT
        )


def test_a_redirect_is_not_followed():
    """It is an answer like any other."""
    with chaos(c.answering("200 OK", "{}")) as other:
        behave = c.answering("307 Go", "", Location=f"{other.url}/x")
        with chaos(behave) as server:
            assert ask(server).status == 307
        assert other.n_connections == 0


@pytest.fixture
def certificate(tmp_path):
    """A certificate of this machine that nobody vouches for."""
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "cert"]
    subprocess.run([*command.split(), *more], cwd=tmp_path, check=True,
                   capture_output=True)  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")
def test_a_certificate_has_to_be_trusted(certificate, tmp_path, monkeypatch):
    """One that nobody vouches for is refused; ``SSL_CERT_FILE`` says who is trusted."""
    with chaos(c.answering("200 OK", "{}"), certificate) as server:
        with pytest.raises(StoreUnavailableError, match="certificate"):
            ask(server)
        assert server.n_connections == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
        forget()
        assert ask(server).status == 200


def test_a_server_without_tls_is_told_so():
    """Nothing is sent to it that it could read."""
    with chaos(c.saying(b"")) as server:
        plain = server.listening.getsockname()[1]
        address = parse_address(f"https://127.0.0.1:{plain}")
        limits = ExchangeLimits(2.0, 1.0, c.MIB)
        with pytest.raises(StoreUnavailableError):
            exchange(address, HttpRequest("GET", "/secret", {}), limits)
        assert "secret" not in "".join(server.requests)
