"""Real servers in processes of their own, and raw requests to them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

PATIENCE_S = 120

PROGRAM = (sys.executable, "-m", "feinsum.cli")


@dataclass(frozen=True)
class Answer:
    """What came back; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass
class Server:
    """A service that runs: where, and what it logged once it ended.

    Attributes:
        prefix: of all paths, if it is one of several in this process.
    """

    process: subprocess.Popen | None
    port: int
    log: Path
    settings: dict[str, str] = field(default_factory=dict)
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Send a request on a connection of its own; JSON, if there is a body."""
        sent = {} if body is None else {"Content-Type": "application/json"}
        content = body.encode() if isinstance(body, str) else body
        address = "127.0.0.1", self.port
        with closing(HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
            target = self.prefix + path
            connection.request(method, target, content, sent | dict(headers or {}))
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Answer(reply.status, found, reply.read())

    def exchange(self, request: bytes) -> bytes:
        """What comes back for raw bytes until the server closes or has said all."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as stream:
            stream.sendall(request)
            while not is_whole(found) and (more := stream.recv(65536)):
                found += more
        return found

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


def is_whole(answer: bytes) -> bool:
    """Whether an answer has as many bytes as its head says."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return length is not None and len(body) >= int(length[1])


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def running(
    database: str,
    folder: Path,
    workers: int = 1,
    port: int | None = None,
    program: Sequence[str] = PROGRAM,
    **settings,
) -> Iterator[Server]:
    """``feinsum serve``, ready to answer; settings by their names without prefix."""
    port = port or free_port()
    file = folder / f"settings-{port}.toml"
    file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    chosen = {"FEINSUM_SERVE_SETTINGS": str(file)}
    command = [*program, "serve", "--port", str(port)]
    command += ["--workers", str(workers), "--database", database]
    log = folder / f"serve-{port}.log"
    with log.open("a") as stream:
        process = subprocess.Popen(
            command, env=os.environ | chosen, stdout=subprocess.DEVNULL, stderr=stream
        )
        server = Server(process, port, log, chosen)
        try:
            wait_until_ready(server)
            yield server
        finally:
            if process.poll() is None:
                server.end()


def wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()
        try:
            with urlopen(f"{server.url}/readyz", timeout=PATIENCE_S):
                return
        except (URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("the service did not answer: " + server.log.read_text())
