"""The nginx of this machine, with the configuration that is shipped."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage, HTTPSConnection
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.service.running import PATIENCE_S, free_port

SHIPPED = ROOT / "service" / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")

needs_nginx = pytest.mark.skipif(
    not (NGINX and shutil.which("openssl")),
    reason="nginx or openssl is not installed; `make install-nginx` does it on Debian",
)

CLIENT = "127.0.0.5"
"""The address that requests come from; the proxy itself has another one."""

MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
{user}
worker_processes 1;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/feinsum.conf;
}}
"""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: HTTPMessage
    body: bytes


@dataclass(frozen=True)
class Proxy:
    """An nginx that runs."""

    port: int
    plain_port: int
    certificate: Path
    log: Path

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        address: str = CLIENT,
    ) -> Reply:
        """The answer to a request over TLS, whose certificate is verified."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = HTTPSConnection(
            "localhost",
            self.port,
            timeout=PATIENCE_S,
            source_address=(address, 0),
            context=context,
        )
        return exchange(connection, method, path, body, headers)

    def ask_plainly(self, path: str) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.plain_port, timeout=PATIENCE_S)
        return exchange(connection, "GET", path, None, None)


def exchange(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str] | None,
) -> Reply:
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


@contextmanager
def proxied(
    service_port: int, folder: Path, changes: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """A proxy before a service, ready to answer.

    Args:
        changes: texts of the shipped configuration, and what replaces them.
    """
    proxy = Proxy(free_port(), free_port(), folder / "cert.pem", folder / "access.log")
    make_certificate(proxy.certificate, folder / "key.pem")
    text = rendered(proxy, service_port, folder, changes or {})
    (folder / "feinsum.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "main.conf").write_text(MAIN.format(folder=folder, user=user))
    command = [str(NGINX), "-p", str(folder), "-c", str(folder / "main.conf")]
    command += ["-e", str(folder / "error.log")]
    subprocess.run([*command, "-t", "-q"], check=True, timeout=PATIENCE_S)
    process = subprocess.Popen(command)
    try:
        wait_for_port(process, proxy.port)
        yield proxy
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def rendered(
    proxy: Proxy, service_port: int, folder: Path, changes: Mapping[str, str]
) -> str:
    """The configuration that is shipped, with the ports and paths of a test."""
    text = SHIPPED.read_text()
    for shipped, here in {
        "listen 80;": f"listen 127.0.0.1:{proxy.plain_port};",
        "listen 443 ssl;": f"listen 127.0.0.1:{proxy.port} ssl;",
        "server 127.0.0.1:8765;": f"server 127.0.0.1:{service_port};",
        "/etc/ssl/facts.example/fullchain.pem": f"{proxy.certificate}",
        "/etc/ssl/facts.example/privkey.pem": f"{folder}/key.pem",
        "/var/cache/nginx/feinsum": f"{folder}/cache",
        "/var/log/nginx/feinsum.log": f"{proxy.log}",
        "/var/log/nginx/feinsum-error.log": f"{proxy.log.with_name('errors.log')}",
        **changes,
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    return text


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate of this machine that is signed by itself."""
    command = ["openssl", "req", "-x509", "-days", "2", "-nodes", "-newkey", "ec"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)


def wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    while time.monotonic() < deadline:
        assert process.poll() is None
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            connection.close()
            return
    raise AssertionError("nginx did not listen")
