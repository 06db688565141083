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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path):
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "feinsum.cli",
        "serve",
        "--json",
        "--port",
        str(port),
    ]
    command += ["--database", str(tmp_path / "facts.sqlite")]
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
    for _ in range(100):
        try:
            with urlopen(f"{url}/healthz") as answer:
                assert json.load(answer) == {"records": 0}
            break
        except URLError:
            time.sleep(0.1)
    else:
        pytest.fail("the service did not answer within 10 s")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) in (0, -signal.SIGINT)
