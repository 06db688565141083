"""Answers are kept no longer than they are true, and sent no more than needed."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from feinsum.db import open_store
from feinsum.db.server.reader import StoredFact
from feinsum.db.server.serving import open_serving_store
from feinsum.records import TuningRecord, find_best_match, from_json, rank, to_json
from feinsum.service import answers
from feinsum.service.answers import DeviceQuery, make_answer
from feinsum.service.lookup import Lookup
from feinsum.service.routes import best
from feinsum.service.routes.best import PREFIX, Shortcut
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_processor,
    make_record,
    make_workload,
)
from tests.service.conftest import key_for, send

BEST = f"/v1/best/{WORKLOAD}"


def test_a_known_answer_is_not_sent_again(client):
    """With its ETag, alone or in a list, an answer is 304 and empty."""
    send(client, to_json(make_record()))
    tag = client.get(BEST).headers["etag"]
    for asked in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        answer = client.get(BEST, headers={"If-None-Match": asked})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
    assert client.get(BEST, headers={"If-None-Match": 'W/"x"'}).status_code == 200


def test_an_answer_changes_when_anybody_writes(serve, any_location):
    """A fact that another program writes is in the next answer, with another ETag."""
    client = serve(database=any_location)
    assert client.get(BEST).status_code == 404
    tags = []
    for n in range(3):
        with open_store(any_location) as store:
            store.add(make_record(n))
        answer = client.get(BEST)
        tags.append(answer.headers["etag"])
        assert len(answer.json()["facts"]) == n + 1
    assert len(set(tags)) == 3


def test_what_was_posted_is_answered_at_once(serve, any_location):
    """However long answers are taken to be fresh, a service knows its own facts."""
    client = serve(database=any_location, freshness_s=3600)
    assert client.get(BEST).status_code == 404
    send(client, to_json(make_record()))
    assert client.get(BEST).status_code == 200


def test_an_answer_is_made_anew_only_if_its_facts_changed(any_location):
    """Facts of other workloads change no answer."""
    with open_serving_store(any_location) as store, closing(store.reader()) as reader:
        read = []
        facts = reader.facts
        reader.facts = lambda keys: read.extend(keys) or facts(keys)
        lookup = Lookup(reader, freshness_s=0, max_bytes=2**20)
        question = (WORKLOAD, DeviceQuery())

        async def ask_thrice():
            first = await lookup.answer(question)
            store.add(make_record(1, workload="other"))
            second = await lookup.answer(question)
            store.add(make_record(1))
            return first, second, await lookup.answer(question)

        store.add(make_record(0))
        first, second, third = asyncio.run(ask_thrice())
        assert first is second
        assert third != first
        assert read == [WORKLOAD, WORKLOAD]
        lookup.close()


def test_answers_are_the_same_without_memory(serve):
    """Keeping answers changes none of them."""
    for cache_mb in (0, 1):
        client = serve(cache_mb=cache_mb)
        send(client, to_json(make_record()))
        assert client.get(BEST).content == client.get(BEST).content


def test_many_ask_at_once(client):
    """Questions that wait together are all answered, each with its own answer."""
    for n in range(20):
        send(client, to_json(make_record(n, workload=make_workload(n))))
    barrier = threading.Barrier(8)

    def ask(k):
        barrier.wait()
        return [
            client.get(f"/v1/best/{make_workload(n)}").json()["workload"]
            for n in range(k, 20)
        ]

    with ThreadPoolExecutor(8) as threads:
        for k, found in enumerate(threads.map(ask, range(8))):
            assert found == [make_workload(n) for n in range(k, 20)]


SEVERAL = [make_workload(n) for n in range(5)]


@pytest.fixture
def brief(serve, monkeypatch):
    """A service of five workloads with a fact each, two of which a batch may read."""
    n_bytes = len(to_json(make_record(workload=SEVERAL[0])))
    monkeypatch.setattr(best, "ANONYMOUS_BYTES", 11 * n_bytes // 4)
    client = serve()
    for workload in SEVERAL:
        send(client, to_json(make_record(workload=workload)))
    return client


def ask_many(client, keys, **headers):
    """The answers of a batch."""
    answer = client.post("/v1/best:batch", json={"workloads": keys}, headers=headers)
    return answer.json()["answers"]


def test_a_batch_without_a_key_reads_no_more_than_that(brief):
    """The first ones are answered; a cursor leads to the others, and a miss is one."""
    found = ask_many(brief, [*SEVERAL, "none"])
    assert [len(answer["facts"]) for answer in found[:-1]] == [1, 1, 0, 0, 0]
    assert found[-1] is None
    for answer in found[2:-1]:
        path = f"/v1/best/{answer['workload']}?cursor={answer['next']}"
        assert len(brief.get(path).json()["facts"]) == 1
    with_key = ask_many(brief, SEVERAL, **key_for(brief, "read"))
    assert all(answer["facts"] and answer["next"] is None for answer in with_key)


def test_repeats_have_no_more_room_than_others(brief):
    """However often one workload is asked for, the answer stays that long."""
    found = ask_many(brief, SEVERAL[:1] * 50)
    assert [bool(answer["facts"]) for answer in found] == [True] * 2 + [False] * 48
    assert all(answer["next"] for answer in found[2:])


def test_answers_are_compressed_on_demand(client):
    """Gzip is sent to who takes it, and says the same."""
    for path in (BEST, "/v1/facts", "/openapi.json"):
        for n in range(3):
            send(client, to_json(make_record(n)))
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        with client.stream("GET", path, headers={"Accept-Encoding": "gzip"}) as answer:
            raw = b"".join(answer.iter_raw())
            assert answer.headers["content-encoding"] == "gzip"
        assert gzip.decompress(raw) == plain.content


def test_a_weight_of_zero_refuses_gzip(client):
    """By RFC 9110, section 12.4.2."""
    for accepted, is_compressed in (
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
    ):
        send(client, to_json(make_record()))
        answer = client.get(BEST, headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers) == is_compressed


def test_the_shortcut_changes_nothing(client, monkeypatch):
    """With and without it, ``best`` answers the same."""
    send(client, to_json(make_record()))
    asked = [BEST, BEST + "?policy=strict&device=x", "/v1/best/none", "/v1/best/a%00b"]

    def answered():
        found = [client.get(path) for path in asked]
        return [(a.status_code, a.content, a.headers.get("etag")) for a in found]

    short = answered()

    async def without(self, scope, receive, send):
        await self._app(scope, receive, send)

    monkeypatch.setattr(Shortcut, "__call__", without)
    assert answered() == short
    assert PREFIX in BEST


@given(order=st.permutations(range(6)))
def test_an_answer_does_not_depend_on_the_order_of_rows(order):
    """Permuted facts give the same bytes and the same ETag."""
    facts = [StoredFact(r, to_json(r)) for r in map(make_record, range(6))]
    expected = make_answer(WORKLOAD, facts, DeviceQuery(), {})
    assert (
        make_answer(WORKLOAD, [facts[k] for k in order], DeviceQuery(), {}) == expected
    )


def test_a_recipe_that_was_slower_is_told_and_not_served(client):
    """A client matches an answer as it would match all facts of the workload."""
    here, there = make_environment(make_device(0)), make_environment(make_device(1))
    good, other = make_record(0, environment=there), make_record(1, environment=here)
    measured = replace(good.measurement, baseline_s=(good.measurement.median_s / 2,))
    slow = replace(good, environment=here, measurement=measured)
    useless = replace(slow, spec=make_record(2).spec)
    every = (good, other, slow, useless)
    for record in every:
        send(client, to_json(record), **key_for(client, "admin"))
    answer = client.get(f"{BEST}?device={make_device(0).id}").json()
    assert [f["id"] for f in answer["facts"]] == [other.id, good.id]
    assert [f["id"] for f in answer["slower"]] == [slow.id]
    told = [
        from_json(TuningRecord, json.dumps(f["document"]))
        for f in answer["facts"] + answer["slower"]
    ]
    for driver in ("6.0", "7.0"):
        at = make_environment(make_device(0), driver)
        assert find_best_match(told, at).ranking == find_best_match(every, at).ranking


def test_no_kind_of_device_crowds_out_another(monkeypatch):
    """Where more facts serve than are answered, each platform and microarchitecture
    has its best among them: a client takes the nearest, which may be the slowest.
    """
    monkeypatch.setattr(answers, "MAX_FACTS", 4)
    fast, slow = make_device(1, make_processor("zen4")), make_device(2)
    records = [make_record(n, environment=make_environment(fast)) for n in range(9)]
    measured = replace(records[0].measurement, baseline_s=(2e-3,))
    alone = make_record(0, environment=make_environment(slow))
    records.append(replace(alone, measurement=measured))
    stored = [StoredFact(record, to_json(record)) for record in records]
    answer = make_answer(WORKLOAD, stored, DeviceQuery(architecture="cpu/x86_64"), {})
    ranked = [record.id for record in rank(records)]
    told = [fact["id"] for fact in json.loads(answer.body)["facts"]]
    assert told == [*ranked[:3], records[-1].id]


def test_answers_of_shared_caches(serve, location):
    """Where reading needs a key, no shared cache may keep what was read."""
    client = serve()
    record = make_record()
    send(client, to_json(record))
    for path in (BEST, f"/v1/facts/{record.id}"):
        assert client.get(path).headers["cache-control"].startswith("public")
    closed = serve(anonymous_read=False)
    assert isinstance(closed, TestClient)
    assert closed.get(BEST).headers["cache-control"] == "no-store"
