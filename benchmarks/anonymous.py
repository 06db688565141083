"""What one request without a key may take of a worker: its memory, and its time.

``python benchmarks/anonymous.py`` fills a database with what is large and plausible:
a workload with long facts, workloads with many, many workloads with long texts,
devices with long names, a plan of many steps, demand and retractions. ``feinsum serve``
runs over it with one worker that keeps no answers. Every route of the service, its
pages included, then gets the requests without a key that cost it the most, among them
answers that are compressed, and bodies of a megabyte that are refused.

Memory is how far the peak of the process rises above what it had before the request.
Time is that of the worker's processor, not of a process that canonicalizes for it.
Ends with exit code 1 if a request takes more memory than 50 MB, or in the median more
time than 100 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.experiments.machine import processor  # noqa: E402
from benchmarks.service import databases, serving  # noqa: E402
from feinsum.canonical import WorkloadKey  # noqa: E402
from feinsum.db.server.demand import DemandLimits, DemandRequest  # noqa: E402
from feinsum.db.server.serving import ServingStore, open_serving_store  # noqa: E402
from feinsum.distributed import plan  # noqa: E402
from feinsum.ir import array, einsum  # noqa: E402
from feinsum.records import (  # noqa: E402
    Miss,
    PlanRecord,
    Retraction,
    TransformSpec,
    TuningRecord,
)
from feinsum.service.paging import to_cursor  # noqa: E402
from tests.service.examples import DEVICE, PEAKS, PLAN, RECORD  # noqa: E402

MOST_BYTES = 50 * 10**6
MOST_S = 0.1

N_LONG, N_WORKLOADS, N_DEVICES, N_DEMANDS, N_RETRACTED = 250, 1000, 200, 200, 1000
N_BUSY, N_ALIKE = 200, 40
"""Workloads that have many facts, and how many each."""
LONGEST_TEXT = 15_000
N_OPERANDS, N_RANKS = 50, 64
"""Of the plan of many steps."""
CROWDED = WorkloadKey("crowded-1")
DESCRIPTION = "/openapi.json"
TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Probe:
    """What is sent to a route, whose path is as the service describes it.

    Attributes:
        verb: the method; that of the body, if it is empty.
        coding: in which the answer may come.
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
    """What a request took of the worker, and its answer.

    Attributes:
        memory_bytes: the most of all times.
        seconds: of the worker's processor, in the median.
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


def long_fact(number: int) -> TuningRecord:
    """A fact of the workload that has many, almost as long as a document may be."""
    device = replace(DEVICE, name=f"{number % N_DEVICES:03} " + "n" * 200)
    return replace(
        RECORD,
        workload=CROWDED,
        environment=replace(RECORD.environment, device=device),
        spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": number}),
        provenance={f"{k}": "x" * 1000 for k in range(55)},
    )


def wide_fact(number: int) -> TuningRecord:
    """The fact of one of many workloads, with a long text."""
    terms = ", ".join(f"a{number} i{k}" for k in range(150))
    operands = " ".join(f"A{k}[4,4]:<f8" for k in range(150))
    names = " ".join(f"A{k}" for k in range(150))
    return replace(
        RECORD,
        workload=WorkloadKey(f"wide-{number}"),
        workload_text=f"{terms} -> a{number} | {operands} | {names}",
    )


def busy_fact(number: int) -> TuningRecord:
    """A fact of one of the workloads that have many."""
    workload, recipe = divmod(number, N_ALIKE)
    return replace(
        RECORD,
        workload=WorkloadKey(f"busy-{workload}"),
        spec=TransformSpec("rowwise", 1, {"index": "a", "lanes": recipe}),
    )


@cache
def long_plan() -> PlanRecord:
    """A plan of as many steps and ranks as are drawn."""
    subscripts = ",".join(map("".join, pairwise(ascii_letters[: N_OPERANDS + 1])))
    operands = [array(f"A{k}", (64, 64)) for k in range(N_OPERANDS)]
    ranks_plan = plan(einsum(subscripts, *operands), processes=N_RANKS)
    return replace(PLAN, workload=WorkloadKey("long-plan"), plan=ranks_plan.to_json())


def fill(store: ServingStore, n_busy: int = N_BUSY) -> None:
    """Add what is large and plausible."""
    store.add_all([RECORD, *map(long_fact, range(N_LONG))])
    store.add_all(map(wide_fact, range(N_WORKLOADS)))
    store.add_all(map(busy_fact, range(n_busy * N_ALIKE)))
    store.add(PEAKS)
    store.add(PLAN)
    store.add(long_plan())
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


def probes() -> Iterator[Probe]:
    """The requests without a key that cost the most, of every route."""
    yield from _lookups()
    yield from _lists()
    yield from _pages()
    yield from _einsums()
    yield from _floods()
    yield from _wrong_methods()
    yield from _compressed()


BATCHES = {
    "hits": [f"wide-{n}" for n in range(N_WORKLOADS)],
    "repeats": [CROWDED] * 1000,
    "misses": [f"none-{n}" for n in range(1000)],
    "many facts": [f"busy-{n}" for n in range(N_BUSY)],
}


def _lookups() -> Iterator[Probe]:
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


def _lists() -> Iterator[Probe]:
    for name in ("workloads", "devices", "facts", "demand", "retractions", "plans"):
        yield Probe("1000", f"/v1/{name}", f"/v1/{name}?limit=1000")
    for name, query in (("of one workload", f"workload={CROWDED}"),
                        ("of one device", f"device={DEVICE.id}"),
                        ("the rest", f"cursor={to_cursor('8' * 64)}")):  # fmt: skip
        yield Probe(name, "/v1/facts", f"/v1/facts?limit=1000&{query}")
    fact = long_fact(0)
    yield Probe("long", "/v1/facts/{record_id}", f"/v1/facts/{fact.id}")
    yield Probe("long", "/v1/facts/{record_id}/trust", f"/v1/facts/{fact.id}/trust")
    yield Probe("one", "/v1/peaks/{device_id}", f"/v1/peaks/{DEVICE.id}")
    yield Probe("long", "/v1/plans/{record_id}", f"/v1/plans/{long_plan().id}")
    for path in ("/v1/capabilities", "/healthz", "/readyz", "/metrics", DESCRIPTION):
        yield Probe("one", path, path)


def _pages() -> Iterator[Probe]:
    for path in ("/", "/workloads", "/devices", "/coverage", "/plans"):
        yield Probe("page", path, path)
    fact = long_fact(0)
    yield Probe("crowded", "/workloads/{key}", f"/workloads/{CROWDED}")
    yield Probe("long text", "/workloads/{key}", "/workloads/wide-1")
    yield Probe("long", "/facts/{record_id}", f"/facts/{fact.id}")
    yield Probe("long text", "/facts/{record_id}", f"/facts/{wide_fact(1).id}")
    for device in (DEVICE, fact.environment.device):
        yield Probe(device.name[:9], "/devices/{device_id}", f"/devices/{device.id}")
    yield Probe("many facts", "/workloads/{key}", "/workloads/busy-1")
    for of in (PLAN, long_plan()):
        yield Probe(of.workload[:9], "/plans/{record_id}", f"/plans/{of.id}")
    yield Probe("none", "/static/{name}", "/static/none.css")
    for name, text in (("a name", "rowwise"), ("a device", "nnn"), ("a key", "wide"),
                       ("terms", ",".join(["ij"] * 150)), ("a pair", "ij,jk->ik"),
                       ("hard", ",".join(hard_terms()))):  # fmt: skip
        yield Probe(name, "/workloads", f"/workloads?q={quote(text)}")
    sizes = ",".join(f"i{n}={n}" for n in range(250))
    yield Probe("sizes", "/workloads", f"/workloads?q=ij,jk->ik&sizes={quote(sizes)}")
    yield Probe("a dtype", "/workloads", "/workloads?dtype=float64")
    yield Probe("a long name", "/workloads", f"/workloads?q={'n' * 2000}")


def hard_terms(n: int = 5) -> list[str]:
    """Index pairs of the rook's graph, of which every vertex looks like every other."""
    cells = [(a, b) for a in range(n) for b in range(n)]
    pairs = [
        p for p in combinations(cells, 2) if p[0][0] == p[1][0] or p[0][1] == p[1][1]
    ]
    letters = {
        cell: chr(65 + k) if k < 26 else chr(71 + k) for k, cell in enumerate(cells)
    }
    return [letters[a] + letters[b] for a, b in pairs]


def _einsums() -> Iterator[Probe]:
    path = "/v1/canonicalize"
    for name, terms in (("equal terms", ["ij"] * 190), ("hard", hard_terms()),
                        ("vertices", ["i"] * 190)):  # fmt: skip
        extents = dict.fromkeys(sorted(set("".join(terms))), 4)
        question = {"subscripts": ",".join(terms) + "->", "extents": extents}
        yield Probe(name, path, path, json.dumps(question))
    text = "i -> i | " + "A" * 19_000 + "[3]:<f8 | A"
    yield Probe("long text", path, path, json.dumps({"text": text}))


def _floods() -> Iterator[Probe]:
    """Bodies of a megabyte whose values are wrong, one by one."""
    ids, batch, form = "/v1/facts:missing", "/v1/best:batch", "/v1/canonicalize"
    for item in ("{}", "[]", "1", '""', '"k-1"', '{"key":1,"b":2}'):
        yield Probe(f"{item} …", batch, batch, f'{{"workloads":{_many(item)}}}')
    yield Probe("1 …", ids, ids, f'{{"ids":{_many("1")}}}')
    yield Probe("rows", form, form, f'{{"rows":{_many("[]")}}}')
    names = ",".join(f'"{n:x}":[]' for n in range(80_000))
    yield Probe("extents", form, form, f'{{"extents":{{{names}}}}}')
    yield Probe("a name", batch, batch, json.dumps({"workloads": [], "n" * 900_000: 1}))
    for path in ("/v1/facts", "/v1/peaks", "/v1/plans", "/v1/retractions",
                 "/v1/facts:retract"):  # fmt: skip
        yield Probe("{} …", path, path, _many("{}"))
        yield Probe("a text", path, path, json.dumps({"provenance": "x" * 900_000}))
    long = {"workloads": ["k" * 900_000]}, {"workloads": [], "device": "d" * 900_000}
    for content in long:
        yield Probe("a long value", batch, batch, json.dumps(content))
    for path in (batch, ids, form):
        yield Probe("deep", path, path, "[" * 9_000 + "]" * 9_000)
        yield Probe("a number", path, path, "9" * 900_000)
    keys = ",".join(f'"{n}":""' for n in range(3_000))
    yield Probe("dtypes", form, form, f'{{"subscripts":"i->","dtypes":{{{keys}}}}}')


def _wrong_methods() -> Iterator[Probe]:
    """Methods that a route does not have, or that need a key, with a long body."""
    text = json.dumps({"reason": "r" * 900_000})
    fact = f"/v1/facts/{RECORD.id}?reason={'r' * 1000}"
    yield Probe("a key", "/v1/facts/{record_id}", fact, text, "DELETE")
    for path in ("/v1/facts", "/", "/none"):
        yield Probe("a method", path, path, text, "PUT")
    yield Probe("a head", "/v1/best/{key}", f"/v1/best/{CROWDED}", verb="HEAD")


def _compressed() -> Iterator[Probe]:
    """Long answers, compressed."""
    for name in ("workloads", "facts", "demand", "retractions"):
        path = f"/v1/{name}?limit=1000"
        yield Probe("gzip", f"/v1/{name}", path, coding="gzip")
    path = f"/v1/best/{CROWDED}?policy=loose"
    yield Probe("gzip", "/v1/best/{key}", path, coding="gzip")
    yield Probe("gzip", "/workloads/{key}", f"/workloads/{CROWDED}", coding="gzip")
    plan_path = f"/plans/{long_plan().id}"
    yield Probe("gzip", "/plans/{record_id}", plan_path, coding="gzip")
    yield Probe("gzip", DESCRIPTION, DESCRIPTION, coding="gzip")
    for name, asked in BATCHES.items():
        body = json.dumps({"workloads": asked})
        path = "/v1/best:batch"
        yield Probe(f"{name}, gzip", path, path, body, coding="gzip")


def _many(item: str) -> str:
    return f"[{','.join([item] * (900_000 // (len(item) + 1)))}]"


def cost_of(probe: Probe, port: int, pid: int, rounds: int) -> Cost:
    """Send a request some times, and see what it takes of a process."""
    memory, seconds = 0, []
    for _ in range(rounds):
        reset_peak(pid)
        before_bytes, before_s = status_bytes(pid, "VmRSS"), processor_s(pid)
        status, n_bytes = asked(probe, port)
        seconds.append(processor_s(pid) - before_s)
        memory = max(memory, status_bytes(pid, "VmHWM") - before_bytes)
    return Cost(probe.name, probe.method, probe.route, status, n_bytes, memory,
                median(seconds))  # fmt: skip


def asked(probe: Probe, port: int) -> tuple[int, int]:
    """The status and the length of an answer, on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(probe.method, probe.path, probe.body, probe.headers)
        answer = connection.getresponse()
        return answer.status, len(answer.read())
    finally:
        connection.close()


def status_bytes(pid: int, name: str) -> int:
    """A number that Linux has of the memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"Linux does not say {name} of process {pid}")


def reset_peak(pid: int) -> None:
    """Let the peak of its memory be what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def processor_s(pid: int) -> float:
    """Seconds that the threads of a process ran until now."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat_file.read_text().split()[0]) for stat_file in threads) / 1e9


def measured(location: str, rounds: int) -> list[Cost]:
    """All requests to a service over one database, each after a first one."""
    with open_serving_store(location) as store:
        fill(store)
    with serving(location, 1, cache_mb=0) as (port, process):
        every = list(probes())
        for probe in every:  # what is imported once is not of one request
            asked(probe, port)
        return [
            cost_of(probe, port, process.pid, rounds)
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
    parser.add_argument("--rounds", type=int, default=5, help="of each request")
    parser.add_argument("--on", choices=["sqlite", "postgresql"], nargs="+",
                        default=["sqlite"])  # fmt: skip
    parser.add_argument("--url", help="of a PostgreSQL server to use")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    options = parser.parse_args(arguments)
    with databases(options) as urls:
        measured_costs = {
            name: measured(at, options.rounds) for name, at in urls.items()
        }
    if options.json:
        costs = {
            name: [asdict(cost) for cost in costs_of_route]
            for name, costs_of_route in measured_costs.items()
        }
        print(json.dumps({"processor": processor(), "costs": costs}, indent=2))
    else:
        console = Console()
        for name, costs_there in measured_costs.items():
            console.print(f"{name}, one worker, {processor()}")
            report(console, sorted(costs_there, key=lambda cost: -cost.seconds))
    if any(
        cost.is_above
        for costs_of_route in measured_costs.values()
        for cost in costs_of_route
    ):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
