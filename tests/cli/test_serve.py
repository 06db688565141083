"""The service starts from the command line and answers on a socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.service.running import free_port


@pytest.fixture
def server(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "feinsum.cli", "serve", "--json"]
    command += ["--port", str(port), "--database", str(tmp_path / "facts.sqlite")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ,
        text=True,
    )
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
    process.stdout.close()


def test_serve_answers_until_it_is_interrupted(server):
    """It says where it listens, answers there, and ends when it is told to."""
    process, url = server
    document = "".join(iter(process.stdout.readline, "}\n")) + "}"
    assert json.loads(document) == {"url": url}
    for _ in range(600):
        try:
            with urlopen(f"{url}/healthz") as answer:
                assert json.load(answer) == {"status": "ok"}
            break
        except URLError:
            time.sleep(0.1)
    else:
        pytest.fail("the service did not answer within 60 s")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) in (0, -signal.SIGINT)


def test_what_cannot_be_served_on_is_bad_usage(run):
    """A port or a number of workers that is none is refused before anything runs."""
    for arguments in (["--port", "70000"], ["--workers", "0"]):
        assert run("serve", *arguments).exit_code == 2


def test_a_setting_that_cannot_be_read_is_named(run, monkeypatch):
    """The message names the variable."""
    monkeypatch.setenv("FEINSUM_SERVE_MAX_BATCH", "many")
    result = run("serve")
    assert result.exit_code == 1
    assert "FEINSUM_SERVE_MAX_BATCH" in result.stderr


def test_a_port_that_is_taken_is_told_and_nothing_else(run, tmp_path):
    """Nobody is told that it serves where another program does, and no database is
    created.
    """
    database = tmp_path / "facts.sqlite"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = run("serve", "--port", port, "--database", str(database))
    assert result.exit_code == 1
    assert result.stdout == ""
    (refusal,) = result.stderr.splitlines()
    assert not database.exists()
    assert f"cannot listen on 127.0.0.1, port {port}" in refusal


def test_a_database_that_is_none_is_told_and_nothing_else(run, tmp_path):
    """Nobody is told that it serves before the database is open."""
    database = tmp_path / "facts.sqlite"
    database.write_text("no database")
    result = run("serve", "--port", "0", "--database", str(database))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "[store-unavailable]" in result.stderr
