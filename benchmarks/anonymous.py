"""Measure the memory and time of a worker that requests without a key can take.

``python -m benchmarks.anonymous`` fills a database with large but plausible contents: a
workload with long facts, workloads with many facts, many workloads with long texts,
devices with long names, a plan of many steps, demand and retractions. ``feinsum serve``
serves it with one worker that caches no answers. Every route of the service, including
pages, then gets the most expensive requests without a key, among them compressed
answers, and bodies of a megabyte that are refused.

Memory is the rise of the peak of the process above its memory before the request. Time
is processor time of the worker, without that of canonicalization in a child process.
The exit code is 1 if a request takes more than 50 MB of memory, or more than 100 ms of
median time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from http.client import HTTPConnection
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from string import ascii_letters
from urllib.parse import quote

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.experiments.machine import describe_processor
from benchmarks.processes import read_memory_bytes, reset_peak_memory
from benchmarks.service import add_database_options, open_databases, run_service
from feinsum.canonical import WorkloadKey
from feinsum.db.server.demand import DemandLimits, DemandRequest
from feinsum.db.server.serving import ServingStore, open_serving_store
from feinsum.distributed import plan
from feinsum.ir import array, einsum
from feinsum.records import (
    Miss,
    PlanRecord,
    Retraction,
    TransformSpec,
    TuningRecord,
)
from feinsum.service.paging import to_cursor
from tests.service.examples import DEVICE, PEAKS, PLAN, RECORD

MOST_BYTES = 50 * 10**6
MOST_S = 0.1

N_LONG, N_WORKLOADS, N_DEVICES, N_DEMANDS, N_RETRACTED = 250, 1000, 200, 200, 1000
N_BUSY, N_ALIKE = 200, 40
"""Number of workloads with many facts, and of facts of each."""
LONGEST_TEXT = 15_000
N_OPERANDS, N_RANKS = 50, 64
"""Size of the plan of many steps."""
CROWDED = WorkloadKey("crowded-1")
DESCRIPTION = "/openapi.json"
TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Probe:
    """A request to a route, whose path is as described by the service.

    Attributes:
        verb: the method; by default GET, or POST with a body.
        coding: accepted encoding of the answer.
    """

    name: str
    route: str
    path: str
    body: str | None = None
    verb: str = ""
    coding: str = "identity"

    @property
    def method(self) -> str:
        return self.verb or ("GET" if self.body is None else "POST")

    @property
    def headers(self) -> dict[str, str]:
        kind = {} if self.body is None else TYPE
        return {**kind, "Accept-Encoding": self.coding}


@dataclass(frozen=True)
class Cost:
    """The cost of a request, and its answer.

    Attributes:
        memory_bytes: the largest of all rounds.
        seconds: median processor time of the worker.
    """

    name: str
    method: str
    route: str
    status: int
    answer_bytes: int
    memory_bytes: int
    seconds: float

    @property
    def is_above(self) -> bool:
        return self.memory_bytes > MOST_BYTES or self.seconds > MOST_S


def make_long_fact(number: int) -> TuningRecord:
    """Make a fact of the crowded workload, almost as long as a document may be."""
    device = replace(DEVICE, name=f"{number % N_DEVICES:03} " + "n" * 200)
    return replace(
        RECORD,
        workload=CROWDED,
        environment=replace(RECORD.environment, device=device),
        spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": number}),
        provenance={f"{k}": "x" * 1000 for k in range(55)},
    )


def make_wide_fact(number: int) -> TuningRecord:
    """Make the fact of one of many workloads, with a long text."""
    terms = ", ".join(f"a{number} i{k}" for k in range(150))
    operands = " ".join(f"A{k}[4,4]:<f8" for k in range(150))
    names = " ".join(f"A{k}" for k in range(150))
    return replace(
        RECORD,
        workload=WorkloadKey(f"wide-{number}"),
        workload_text=f"{terms} -> a{number} | {operands} | {names}",
    )


def make_busy_fact(number: int) -> TuningRecord:
    """Make a fact of one of the workloads that have many."""
    workload, recipe = divmod(number, N_ALIKE)
    return replace(
        RECORD,
        workload=WorkloadKey(f"busy-{workload}"),
        spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": recipe}),
    )


@cache
def make_long_plan() -> PlanRecord:
    """Make the record of a plan of many steps and ranks."""
    subscripts = ",".join(map("".join, pairwise(ascii_letters[: N_OPERANDS + 1])))
    operands = [array(f"A{k}", (64, 64)) for k in range(N_OPERANDS)]
    ranks_plan = plan(einsum(subscripts, *operands), processes=N_RANKS)
    return replace(PLAN, workload=WorkloadKey("long-plan"), plan=ranks_plan.to_json())


def fill(store: ServingStore, n_busy: int = N_BUSY) -> None:
    """Add large but plausible contents."""
    store.add_all([RECORD, *map(make_long_fact, range(N_LONG))])
    store.add_all(map(make_wide_fact, range(N_WORKLOADS)))
    store.add_all(map(make_busy_fact, range(n_busy * N_ALIKE)))
    store.add(PEAKS)
    store.add(PLAN)
    store.add(make_long_plan())
    gone = [replace(RECORD, provenance={"n": f"{n}"}) for n in range(N_RETRACTED)]
    store.add_all(gone)
    store.add_all([Retraction(fact.id, "r" * 500, "ann") for fact in gone])
    wanted = [WorkloadKey(f"wanted-{n}") for n in range(N_DEMANDS)]
    counts = {
        DemandRequest(Miss(key, "d" * 300), f"address {n}"): 1
        for n, key in enumerate(wanted)
    }
    texts = dict.fromkeys(wanted, "t" * LONGEST_TEXT)
    store.add_misses(counts, texts, DemandLimits())


def list_probes() -> Iterator[Probe]:
    """Yield the most expensive requests without a key of every route."""
    yield from _probe_lookups()
    yield from _probe_lists()
    yield from _probe_pages()
    yield from _probe_einsums()
    yield from _probe_floods()
    yield from _probe_methods()
    yield from _probe_compression()


BATCHES = {
    "hits": [f"wide-{n}" for n in range(N_WORKLOADS)],
    "repeats": [CROWDED] * 1000,
    "misses": [f"none-{n}" for n in range(1000)],
    "many facts": [f"busy-{n}" for n in range(N_BUSY)],
}


def _probe_lookups() -> Iterator[Probe]:
    best, batch = "/v1/best/{key}", "/v1/best:batch"
    for policy in ("loose", "strict"):
        query = f"device={DEVICE.id}&policy={policy}"
        yield Probe(policy, best, f"/v1/best/{CROWDED}?{query}")
    later = f"policy=loose&cursor={to_cursor(40)}"
    yield Probe("the rest", best, f"/v1/best/{CROWDED}?{later}")
    yield Probe("many facts", best, "/v1/best/busy-1?policy=loose")
    yield Probe("long text", best, "/v1/best/miss-1?text=" + "t" * 20_000)
    names = f"device={'n' * 300}&architecture={'a' * 300}&x={'x' * 60_000}"
    yield Probe("long names", best, f"/v1/best/{CROWDED}?{names}")
    for name, body in BATCHES.items():
        yield Probe(name, batch, batch, json.dumps({"workloads": body}))
    demands = [{"key": f"told-{n}", "text": "t" * 900} for n in range(1000)]
    yield Probe("texts", batch, batch, json.dumps({"workloads": demands}))
    ids = json.dumps({"ids": [f"{n:064x}" for n in range(1000)]})
    yield Probe("many", "/v1/facts:missing", "/v1/facts:missing", ids)


def _probe_lists() -> Iterator[Probe]:
    for name in ("workloads", "devices", "facts", "demand", "retractions", "plans"):
        yield Probe("1000", f"/v1/{name}", f"/v1/{name}?limit=1000")
    for name, query in (("of one workload", f"workload={CROWDED}"),
                        ("of one device", f"device={DEVICE.id}"),
                        ("the rest", f"cursor={to_cursor('8' * 64)}")):  # fmt: skip
        yield Probe(name, "/v1/facts", f"/v1/facts?limit=1000&{query}")
    fact = make_long_fact(0)
    yield Probe("long", "/v1/facts/{record_id}", f"/v1/facts/{fact.id}")
    yield Probe("long", "/v1/facts/{record_id}/trust", f"/v1/facts/{fact.id}/trust")
    yield Probe("one", "/v1/peaks/{device_id}", f"/v1/peaks/{DEVICE.id}")
    yield Probe("long", "/v1/plans/{record_id}", f"/v1/plans/{make_long_plan().id}")
    for path in ("/v1/capabilities", "/healthz", "/readyz", "/metrics", DESCRIPTION):
        yield Probe("one", path, path)


def _probe_pages() -> Iterator[Probe]:
    for path in ("/", "/workloads", "/devices", "/coverage", "/plans"):
        yield Probe("page", path, path)
    fact = make_long_fact(0)
    yield Probe("crowded", "/workloads/{key}", f"/workloads/{CROWDED}")
    yield Probe("long text", "/workloads/{key}", "/workloads/wide-1")
    yield Probe("long", "/facts/{record_id}", f"/facts/{fact.id}")
    yield Probe("long text", "/facts/{record_id}", f"/facts/{make_wide_fact(1).id}")
    for device in (DEVICE, fact.environment.device):
        yield Probe(device.name[:9], "/devices/{device_id}", f"/devices/{device.id}")
    yield Probe("many facts", "/workloads/{key}", "/workloads/busy-1")
    for record in (PLAN, make_long_plan()):
        yield Probe(record.workload[:9], "/plans/{record_id}", f"/plans/{record.id}")
    yield Probe("none", "/static/{name}", "/static/none.css")
    for name, text in (("a name", "rowwise"), ("a device", "nnn"), ("a key", "wide"),
                       ("terms", ",".join(["ij"] * 150)), ("a pair", "ij,jk->ik"),
                       ("hard", ",".join(make_hard_terms()))):  # fmt: skip
        yield Probe(name, "/workloads", f"/workloads?q={quote(text)}")
    sizes = ",".join(f"i{n}={n}" for n in range(250))
    yield Probe("sizes", "/workloads", f"/workloads?q=ij,jk->ik&sizes={quote(sizes)}")
    yield Probe("a dtype", "/workloads", "/workloads?dtype=float64")
    yield Probe("a long name", "/workloads", f"/workloads?q={'n' * 2000}")


def make_hard_terms(n: int = 5) -> list[str]:
    """Return the edges of a rook's graph, which is hard to canonicalize."""
    cells = [(a, b) for a in range(n) for b in range(n)]
    pairs = [
        p for p in combinations(cells, 2) if p[0][0] == p[1][0] or p[0][1] == p[1][1]
    ]
    letters = {
        cell: chr(65 + k) if k < 26 else chr(71 + k) for k, cell in enumerate(cells)
    }
    return [letters[a] + letters[b] for a, b in pairs]


def _probe_einsums() -> Iterator[Probe]:
    path = "/v1/canonicalize"
    for name, terms in (("equal terms", ["ij"] * 190), ("hard", make_hard_terms()),
                        ("vertices", ["i"] * 190)):  # fmt: skip
        extents = dict.fromkeys(sorted(set("".join(terms))), 4)
        question = {"subscripts": ",".join(terms) + "->", "extents": extents}
        yield Probe(name, path, path, json.dumps(question))
    text = "i -> i | " + "A" * 19_000 + "[3]:<f8 | A"
    yield Probe("long text", path, path, json.dumps({"text": text}))


def _probe_floods() -> Iterator[Probe]:
    """Yield bodies of a megabyte with many wrong values."""
    ids, batch, form = "/v1/facts:missing", "/v1/best:batch", "/v1/canonicalize"
    for item in ("{}", "[]", "1", '""', '"k-1"', '{"key":1,"b":2}'):
        yield Probe(f"{item} …", batch, batch, f'{{"workloads":{_repeat_item(item)}}}')
    yield Probe("1 …", ids, ids, f'{{"ids":{_repeat_item("1")}}}')
    yield Probe("rows", form, form, f'{{"rows":{_repeat_item("[]")}}}')
    names = ",".join(f'"{n:x}":[]' for n in range(80_000))
    yield Probe("extents", form, form, f'{{"extents":{{{names}}}}}')
    yield Probe("a name", batch, batch, json.dumps({"workloads": [], "n" * 900_000: 1}))
    for path in ("/v1/facts", "/v1/peaks", "/v1/plans", "/v1/retractions",
                 "/v1/facts:retract"):  # fmt: skip
        yield Probe("{} …", path, path, _repeat_item("{}"))
        yield Probe("a text", path, path, json.dumps({"provenance": "x" * 900_000}))
    long = {"workloads": ["k" * 900_000]}, {"workloads": [], "device": "d" * 900_000}
    for content in long:
        yield Probe("a long value", batch, batch, json.dumps(content))
    for path in (batch, ids, form):
        yield Probe("deep", path, path, "[" * 9_000 + "]" * 9_000)
        yield Probe("a number", path, path, "9" * 900_000)
    keys = ",".join(f'"{n}":""' for n in range(3_000))
    yield Probe("dtypes", form, form, f'{{"subscripts":"i->","dtypes":{{{keys}}}}}')


def _probe_methods() -> Iterator[Probe]:
    """Yield methods that a route lacks, or that require a key, with a long body."""
    text = json.dumps({"reason": "r" * 900_000})
    fact = f"/v1/facts/{RECORD.id}?reason={'r' * 1000}"
    yield Probe("a key", "/v1/facts/{record_id}", fact, text, "DELETE")
    for path in ("/v1/facts", "/", "/none"):
        yield Probe("a method", path, path, text, "PUT")
    yield Probe("a head", "/v1/best/{key}", f"/v1/best/{CROWDED}", verb="HEAD")


def _probe_compression() -> Iterator[Probe]:
    """Yield requests for long, compressed answers."""
    for name in ("workloads", "facts", "demand", "retractions"):
        path = f"/v1/{name}?limit=1000"
        yield Probe("gzip", f"/v1/{name}", path, coding="gzip")
    path = f"/v1/best/{CROWDED}?policy=loose"
    yield Probe("gzip", "/v1/best/{key}", path, coding="gzip")
    yield Probe("gzip", "/workloads/{key}", f"/workloads/{CROWDED}", coding="gzip")
    plan_path = f"/plans/{make_long_plan().id}"
    yield Probe("gzip", "/plans/{record_id}", plan_path, coding="gzip")
    yield Probe("gzip", DESCRIPTION, DESCRIPTION, coding="gzip")
    for name, workloads in BATCHES.items():
        body = json.dumps({"workloads": workloads})
        path = "/v1/best:batch"
        yield Probe(f"{name}, gzip", path, path, body, coding="gzip")


def _repeat_item(item: str) -> str:
    return f"[{','.join([item] * (900_000 // (len(item) + 1)))}]"


def measure_cost(probe: Probe, port: int, pid: int, rounds: int) -> Cost:
    """Send a request several times, and measure its cost to a process."""
    memory, seconds = 0, []
    for _ in range(rounds):
        reset_peak_memory(pid)
        before_bytes, before_s = read_memory_bytes("VmRSS", pid), read_processor_s(pid)
        status, n_bytes = send(probe, port)
        seconds.append(read_processor_s(pid) - before_s)
        memory = max(memory, read_memory_bytes("VmHWM", pid) - before_bytes)
    return Cost(probe.name, probe.method, probe.route, status, n_bytes, memory,
                median(seconds))  # fmt: skip


def send(probe: Probe, port: int) -> tuple[int, int]:
    """Send a request on a new connection; return the status and length of the
    answer.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(probe.method, probe.path, probe.body, probe.headers)
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    finally:
        connection.close()


def read_processor_s(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat_file.read_text().split()[0]) for stat_file in threads) / 1e9


def measure(location: str, rounds: int) -> list[Cost]:
    """Serve a database, and measure all requests, after a first one of each."""
    with open_serving_store(location) as store:
        fill(store)
    with run_service(location, 1, cache_mb=0) as (port, process):
        every = list(list_probes())
        for probe in every:  # imports are not part of a request's cost
            send(probe, port)
        return [
            measure_cost(probe, port, process.pid, rounds)
            for probe in track(every, "requests", console=Console(stderr=True))
        ]


def report(console: Console, costs: Iterable[Cost]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("route", "request"):
        table.add_column(heading, overflow="fold")
    for heading in ("status", "answer kB", "memory MB", "worker ms"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.method} {cost.route}",
            cost.name,
            str(cost.status),
            f"{cost.answer_bytes / 1e3:.0f}",
            f"{cost.memory_bytes / 1e6:.1f}",
            f"{cost.seconds * 1e3:.1f}",
            style="bold" if cost.is_above else "",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="repetitions of each request"
    )
    add_database_options(parser, ["sqlite"])
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args(arguments)
    with open_databases(options) as urls:
        costs = {name: measure(url, options.rounds) for name, url in urls.items()}
    if options.json:
        documents = {
            name: [*map(asdict, url_costs)] for name, url_costs in costs.items()
        }
        text = {"processor": describe_processor(), "costs": documents}
        print(json.dumps(text, indent=2))
    else:
        console = Console()
        for name, url_costs in costs.items():
            console.print(f"{name}, one worker, {describe_processor()}")
            report(console, sorted(url_costs, key=lambda cost: -cost.seconds))
    if any(cost.is_above for url_costs in costs.values() for cost in url_costs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
