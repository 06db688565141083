"""Answers are small, and nobody's facts hide those of another."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from feinsum.records import TransformSpec
from feinsum.service.answers import MAX_FACTS
from tests.db.factories import make_device, make_environment, make_record
from tests.hostile.live import database, live

__all__ = ["database", "live"]

MEMORY = 50 * 2**20
"""The most that anonymous requests may add to the memory of a worker."""

LARGE = 900_000


def fake(number: int, workload: str, *, name: str = "", pad: int = 0):
    """A fact that says it is very fast; of a transform that nobody has, if named."""
    record = make_record(number, workload=workload)
    spec = TransformSpec(name or "rowwise", 1, {"n": number, "pad": "x" * pad})
    fast = replace(record.measurement, baseline_s=(1e3 + number,))
    return replace(record, spec=spec, measurement=fast)


def genuine(workload: str):
    return make_record(0, workload=workload)


def pages_of(live, path: str):
    """All entries of a list, and the sizes of its pages."""
    name = path.partition("?")[0].rpartition("/")[2]
    entries, sizes, cursor = [], [], ""
    while cursor is not None:
        page = live.ask("GET", f"{path}&cursor={cursor}" if cursor else path)
        sizes.append(len(page.body))
        entries += page.json()[name]
        cursor = page.json()["next"]
    return entries, sizes


def test_fakes_of_one_recorder_hide_no_fact_of_another(live):
    """However many facts one recorder sends, another's is answered, and known
    transforms stand before unknown ones.
    """
    for n_fakes in (60, 250):
        workload = f"crowded-{n_fakes}"
        with live.store() as store:
            for number in range(n_fakes):
                store.receive(fake(number, workload, name=f"none_{number % 7}"), "eve")
            store.receive(genuine(workload), "ann")
        answer = live.ask("GET", f"/v1/best/{workload}").json()
        assert len(answer["facts"]) <= MAX_FACTS
        assert answer["facts"][0]["id"] == genuine(workload).id


def test_fakes_on_made_up_devices_hide_no_fact(live):
    """Nor do facts of a thousand devices that are none."""
    workload = "devices-1"
    with live.store() as store:
        for number in range(210):
            there = make_environment(make_device(100 + number))
            store.receive(replace(fake(number, workload), environment=there), "eve")
        store.receive(genuine(workload), "ann")
    here = genuine(workload).environment.device.id
    for query in ("", f"?device={here}", "?architecture=cpu/x86_64"):
        answer = live.ask("GET", f"/v1/best/{workload}{query}").json()
        assert genuine(workload).id in [fact["id"] for fact in answer["facts"]]


def test_long_facts_make_no_long_answer(live):
    """Answers stay near 1 MB; cursors lead to the rest; memory stays."""
    workload = "long-1"
    with live.store() as store:
        for number in range(20):
            store.add(fake(number, workload, pad=LARGE))
    before = live.most_memory()
    sizes, seen, cursor = [], [], ""
    while cursor is not None:
        query = f"?cursor={cursor}" if cursor else ""
        answer = live.ask("GET", f"/v1/best/{workload}{query}")
        sizes.append(len(answer.body))
        seen += [fact["id"] for fact in answer.json()["facts"]]
        cursor = answer.json()["next"]
    assert max(sizes) < LARGE + 300_000
    assert len(seen) == len(set(seen)) > 1
    repeats = json.dumps({"workloads": [workload] * 1000})
    batch = live.ask("POST", "/v1/best:batch", repeats)
    assert batch.status == 200
    assert len(batch.body) < 16 * 2**20
    answers = batch.json()["answers"]
    assert len(answers) == 1000
    assert answers[0]["facts"]
    assert answers[-1]["next"]
    entries, sizes = pages_of(live, f"/v1/facts?limit=1000&workload={workload}")
    assert len(entries) == 20
    assert max(sizes) < 2 * LARGE + 300_000
    for path in (f"/workloads/{workload}", "/", "/workloads", f"/facts/{seen[0]}"):
        assert live.ask("GET", path).status == 200
    assert live.most_memory() - before < MEMORY


def test_long_names_make_no_long_lists(live):
    """Lists of devices and workloads are cut by their length, and lead through all."""
    with live.store() as store:
        for number in range(6):
            device = replace(make_device(number), name=f"{number}" + "x" * LARGE)
            text = f"text {number} " + "y" * LARGE
            record = make_record(
                workload=f"name-{number}",
                workload_text=text,
                environment=make_environment(device),
            )
            store.add(record)
    before = live.most_memory()
    for path, n_at_least in (
        ("/v1/devices?limit=1000", 6),
        ("/v1/workloads?limit=1000", 6),
    ):
        entries, sizes = pages_of(live, path)
        assert len(entries) >= n_at_least
        assert max(sizes) < 2 * LARGE + 300_000
    for path in ("/devices", "/workloads", "/"):
        page = live.ask("GET", path)
        assert page.status == 200
        assert len(page.body) < 300_000
    assert live.most_memory() - before < MEMORY


def test_long_einsums_need_a_key(live):
    """What would take a worker long is refused without a key, before it is read.

    So is a body of very many values, before it is parsed.
    """
    for einsum in (
        {"subscripts": ",".join(["i"] * 5000) + "->i", "extents": {"i": 3}},
        {"subscripts": "i,i->i", "extents": {"i": 3}, "rows": [["A", "x"]] * 9000},
        {"text": "i -> i | A[3]:<f8 | " + "; ".join(["A"] * 9000)},
        {"subscripts": "i->i", "extents": {f"i{n}": 3 for n in range(5000)}},
        {"text": "i -> i | " + "A" * 50_000 + "[3]:<f8 | A"},
    ):
        answer = live.ask("POST", "/v1/canonicalize", json.dumps(einsum))
        refusals = (422, "invalid-request"), (413, "too-large")
        assert (answer.status, answer.json()["code"]) in refusals
        assert re.search(r"send (less at once, or )?a key", answer.json()["detail"])


def test_long_searches_need_a_key(live):
    """So it is for the search of the pages."""
    answer = live.ask("GET", "/workloads?q=" + ",".join(["i"] * 900))
    assert b"send a key" in answer.body
