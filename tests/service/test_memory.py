"""What a worker keeps has a bound in bytes, whatever anybody asks."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cachetools import LRUCache, cached

from feinsum.db.server.reader import Size, States, StoredFact
from feinsum.records import to_json
from feinsum.service import demand
from feinsum.service.answers import DeviceQuery
from feinsum.service.demand import MissCounter
from feinsum.service.lookup import Lookup, ReadBudget
from feinsum.service.pages import graph, search, words
from tests.db.factories import make_record, make_workload

MB = 10**6


class Grown:
    """By how many bytes the memory of this process grew."""

    n_bytes = 0


@contextmanager
def growth() -> Iterator[Grown]:
    grown = Grown()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield grown
        gc.collect()
        grown.n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_queries_of_any_length_leave_nothing_behind(client):
    """Different long queries of one workload do not add up."""
    client.get("/v1/best/k-1")
    filler = "x" * 60_000
    with growth() as grown:
        for n in range(60):
            client.get(f"/v1/best/k-1?counts=false&text={n}{filler}")
    assert grown.n_bytes < 3 * MB


NAMES = {
    "short": lambda n: f"device-{n}",
    "long": lambda n: f"{n:0300d}",
    "wide": lambda n: f"{n:060d}" + "\U0001f600" * 240,
}


class ReaderOf:
    """A reader of a database where every workload has some facts."""

    def __init__(self, n_facts: int) -> None:
        self._n_facts = n_facts

    def generation(self) -> object:
        return 1

    def devices(self) -> dict[str, object]:
        return {}

    def states(self, workloads: list[str]) -> dict[str, States]:
        return {workload: frozenset() for workload in workloads}

    def sizes(self, workloads: list[str]) -> dict[str, Size]:
        return {workload: Size(self._n_facts, 1000) for workload in workloads}

    def facts(self, workloads: list[str]) -> dict[str, list[StoredFact]]:
        return {workload: list(self._of(workload)) for workload in workloads}

    def _of(self, workload: str) -> Iterator[StoredFact]:
        for n in range(self._n_facts):
            record = make_record(n, workload=workload)
            yield StoredFact(record, to_json(record))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("n_facts", "name_of"),
    [(0, NAMES["short"]), (0, NAMES["wide"]), (5, NAMES["long"])],
    ids=["short misses", "wide misses", "hits"],
)
def test_answers_take_no_more_than_their_cache_may(n_facts, name_of):
    """Answers and misses fill the memory that they are allowed, and no more."""
    most = MB
    lookup = Lookup(ReaderOf(n_facts), freshness_s=3600, max_bytes=most)  # type: ignore[arg-type]
    workload = make_workload(1)

    async def ask(numbers: range) -> None:
        asked = [(workload, DeviceQuery(name_of(n), policy="loose")) for n in numbers]
        for answer in (await lookup.answers(asked, ReadBudget())).values():
            assert answer is None or answer.compressed

    asyncio.run(ask(range(2)))
    with growth() as grown:
        asyncio.run(ask(range(2, 100 if n_facts else 1500)))
    lookup.close()
    assert 0.3 * most < grown.n_bytes < 1.1 * most


@pytest.mark.parametrize(
    "name_of", [NAMES["short"], NAMES["wide"]], ids=["short", "wide"]
)
def test_waiting_misses_take_no_more_than_they_may(monkeypatch, name_of):
    """However long their names are; one caller has a part only."""
    monkeypatch.setattr(demand, "MAX_BYTES", MB)
    misses = MissCounter(lambda counts, texts: None)
    with growth() as grown:
        for n in range(2500):
            misses.count(f"key-{n}", name_of(n), None, f"caller {n // 50}")
    assert 0.3 * MB < grown.n_bytes < 1.1 * MB


TEXTS = {
    "short": lambda n: f"i j, j -> i | A{n}[N,4]:<f8 x[4]:<f8 | A{n} x",
    "long": lambda n: ", ".join(["i j"] * 60) + f" -> i | A[{n}]",
    "wide": lambda n: f"no einsum {n}" + "\U0001f600" * 1000,
}

RESULTS = {
    "words": words.make_notation.__wrapped__,
    "drawing": lambda text: replace(DRAWING, text=text),
    "nothing": graph.Drawing,
    "key": lambda text: (str(len(text)) * 40, text),
}

DRAWING = graph.draw_graph("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        *(("words", "short"), ("words", "long"), ("words", "wide")),
        *(("drawing", "wide"), ("nothing", "short"), ("key", "long")),
    ],
)
def test_results_take_no_more_than_they_may(result, text):
    """Whatever the texts of workloads are, a page keeps a number of bytes of them."""
    most = MB // 4
    sizes = []
    for _ in range(3):  # threads of other tests allocate, too: the least counts
        kept = cached(LRUCache(most, words.estimate_bytes))(RESULTS[result])
        with growth() as grown:
            for n in range(300):
                kept(TEXTS[text](n))
        sizes.append(grown.n_bytes)
    assert min(sizes) < 1.15 * most
    assert len(kept.cache) > 1


def test_every_cache_of_the_service_has_a_bound_in_bytes():
    """What pages keep of texts is less than a worker keeps of answers."""
    functions = (words.make_notation, graph.draw_graph, search._compute_key)
    assert sum(function.cache.maxsize for function in functions) <= 64 * 2**20
