"""The program ``feinsum`` in a process that is forked, without a second of imports.

A server imports what commands need, once. The client, which is this file without any
import of the project, sends its arguments, variables, folder and streams, and ends with
the exit code of the command::

    python tests/deploy/forking.py SOCKET db stats
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import NoReturn

STREAMS = (0, 1, 2)

MOST_BYTES = 1 << 20


def call(path: str, arguments: list[str]) -> int:
    """Run a command; returns its exit code."""
    request = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode()  # noqa: PTH109
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        socket.send_fds(connection, [request], STREAMS)
        return int(connection.recv(16) or b"70")


def serve(path: str) -> None:
    """Fork a process for every command, until terminated."""
    import feinsum.db.exchange.garbage
    import feinsum.db.server.serving  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    run(connection)


def run(connection: socket.socket) -> NoReturn:
    """Become the process of one command."""
    from feinsum.cli import app

    request, streams, _, _ = socket.recv_fds(connection, MOST_BYTES, len(STREAMS))
    arguments, variables, folder = json.loads(request)
    for stream, number in zip(streams, STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    code = 70
    try:
        app(arguments, prog_name="feinsum")
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        connection.send(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    path, *words = sys.argv[1:]
    if not words:
        serve(path)
    sys.exit(call(path, words))
