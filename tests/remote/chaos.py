"""A server that does to its clients whatever a test says, on a real socket."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

PATIENCE_S = 60.0
"""After which a client that does not hang up is taken to hang itself."""

STEP_S = 0.02
MIB = 2**20

Behaviour = Callable[["ChaosServer", socket.socket], None]


class ChaosServer:
    """Accepts connections, and treats each as ``behave`` says.

    Attributes:
        requests: what clients sent, one text for each connection.
        n_sent: bytes of the last answer.
        hung_up: is set when a client ends a connection before the server does.
    """

    def __init__(
        self,
        behave: Behaviour,
        certificate: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.behave = behave
        self.certificate = certificate
        self.requests: list[str] = []
        self.n_sent = 0
        self.hung_up = Event()
        self.listening = socket.create_server(("127.0.0.1", port))

    @property
    def url(self) -> str:
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://127.0.0.1:{self.listening.getsockname()[1]}"

    @property
    def n_connections(self) -> int:
        return len(self.requests)

    def run(self) -> None:
        with suppress(OSError):
            while True:
                stream, _ = self.listening.accept()
                Thread(target=self._serve, args=(stream,), daemon=True).start()

    def send(self, stream: socket.socket, content: bytes) -> bool:
        """Send, and whether the client still takes it."""
        try:
            stream.sendall(content)
        except OSError:
            self.hung_up.set()
            return False
        self.n_sent += len(content)
        return True

    def _serve(self, stream: socket.socket) -> None:
        stream.settimeout(PATIENCE_S)
        with suppress(OSError), stream:
            if self.certificate is not None:
                stream = self.certificate.wrap_socket(stream, server_side=True)
            with stream:
                self.requests.append(_request(stream))
                self.n_sent = 0
                self.behave(self, stream)


def _request(stream: socket.socket) -> str:
    """What a client sends: a head, and the body that it announces."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += stream.recv(65536) or b"\r\n\r\n"
    head, _, body = found.partition(b"\r\n\r\n")
    lengths = [
        x for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")
    ]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += stream.recv(65536)
    return (head + b"\r\n\r\n" + body).decode("latin-1")


@contextmanager
def chaos(
    behave: Behaviour, certificate: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[ChaosServer]:
    """A server of that behaviour until the end of the block."""
    server = ChaosServer(behave, certificate, port)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            server.listening.shutdown(socket.SHUT_RDWR)
        server.listening.close()
        thread.join(PATIENCE_S)


def head(status: str, kind: str, length: int | None, **headers: str) -> bytes:
    """The head of an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}"]
    lines += [] if length is None else [f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answering(
    status: str,
    body: bytes | str,
    kind: str = "application/json",
    length: int | None = None,
    **headers: str,
) -> Behaviour:
    """Answers, and closes; ``length`` is what is announced in place of the truth."""
    content = body.encode() if isinstance(body, str) else body
    announced = len(content) if length is None else length

    def behave(server: ChaosServer, stream: socket.socket) -> None:
        server.send(stream, head(status, kind, announced, **headers) + content)

    return behave


def refusing(status: int, code: str, detail: str, **headers: str) -> Behaviour:
    """Answers with a problem document."""
    document = json.dumps({"status": status, "code": code, "detail": detail})
    return answering(f"{status} No", document, "application/problem+json", **headers)


def saying(content: bytes) -> Behaviour:
    """Says something that need not be HTTP, and closes."""

    def behave(server: ChaosServer, stream: socket.socket) -> None:
        server.send(stream, content)

    return behave


def silent(server: ChaosServer, stream: socket.socket) -> None:
    """A black hole: it takes everything and says nothing."""
    if not stream.recv(1):
        server.hung_up.set()


def resetting(server: ChaosServer, stream: socket.socket) -> None:
    """Breaks the connection in the middle of an answer."""
    server.send(stream, head("200 OK", "application/json", 1000) + b"{")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def dripping(content: bytes) -> Behaviour:
    """Sends a byte at a time: each soon, all of them never."""

    def behave(server: ChaosServer, stream: socket.socket) -> None:
        until = time.monotonic() + PATIENCE_S
        for byte in content:
            if time.monotonic() > until or not server.send(stream, bytes([byte])):
                return
            time.sleep(STEP_S)

    return behave


DRIP_OF_BODY = dripping(head("200 OK", "application/json", 10**6) + b" " * 10**6)
DRIP_OF_HEAD = dripping(b"HTTP/1.1 200 OK\r\n" + b"X-Filler: x\r\n" * 10**5)


def endless(server: ChaosServer, stream: socket.socket) -> None:
    """Sends 100 MB, unless the client has had enough before."""
    server.send(stream, head("200 OK", "application/json", 100 * MIB))
    part = b"[" * MIB
    for _ in range(100):
        if not server.send(stream, part):
            return


def bomb(server: ChaosServer, stream: socket.socket) -> None:
    """200 kB that become 200 MB."""
    packed = zlib.compressobj(1, wbits=31)
    parts = [packed.compress(b" " * MIB) for _ in range(200)]
    content = b"".join([*parts, packed.flush()])
    coded = head("200 OK", "application/json", len(content), Content_Encoding="gzip")
    server.send(stream, coded + content)
