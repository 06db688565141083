"""Whatever a service answers, no code runs, no build breaks, and no fact is made up."""

from __future__ import annotations

import hashlib
import json
import pickle

import pytest

from feinsum.db.address import parse_address
from feinsum.db.remote.answers import request_best
from feinsum.db.remote.client import Client
from feinsum.db.remote.layer import open_remote
from feinsum.errors import StoreUnavailableError
from feinsum.records import LookUp, compute_content_id
from feinsum.retrieval import look_up
from tests.db.factories import make_record
from tests.remote.answers import best_of, entry
from tests.remote.chaos import answering, chaos
from tests.remote.conftest import forget
from tests.retrieval.facts import fact_of
from tests.retrieval.kernels import reduction
from tests.retrieval.support import assert_right, why_unchanged
from tests.retrieval.test_hostile import DOCUMENTS, Bomb

GOOD = fact_of(reduction(), speedup=2.0)
BETTER = fact_of(reduction(), speedup=50.0)
KEY = GOOD.workload


def signed(document):
    """An entry whose id is that of its document, whatever that is."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return {"id": hashlib.sha256(text.encode()).hexdigest(), "document": document}


def best(*entries, **changes):
    return json.dumps(
        {"workload": KEY, "facts": list(entries), "slower": [], **changes}
    )


BAD_ENTRIES = {
    **{name: signed(document) for name, document in DOCUMENTS.items()},
    "an id of another": entry(GOOD, id="0" * 64),
    "an id that is none": entry(GOOD, id="../../etc/passwd"),
    "an id that is a number": entry(GOOD, id=10**400),
    "a document as text": entry(GOOD, document="import os"),
    "a document of another": entry(GOOD, document=entry(BETTER)["document"]),
    "no document": {"id": GOOD.id},
    "another workload": entry(make_record()),
    "a list": [],
    "nothing": None,
    "not finite": entry(GOOD, document={"x": float("nan")}),
}

BAD_BODIES = {
    "pickle": pickle.dumps(Bomb()),
    "pickle in latin": json.dumps(pickle.dumps(Bomb(), 0).decode("latin-1")),
    "nothing": "",
    "null": "null",
    "number": "9" * 100_000,
    "nested": "[" * 100_000,
    "nested objects": '{"facts":' * 50_000,
    "a list": "[]",
    "no facts": json.dumps({"workload": KEY}),
    "facts that are none": best(facts={}),
    "facts in a text": best(facts="[]"),
    "slower that is none": best(slower=1),
    "another workload": best_of(GOOD, workload="fe2-another"),
    "no UTF-8": b'{"workload": "\xff"}',
    "a byte order mark": "\ufeff" + best(entry(GOOD)),
}


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """A folder where bombs would explode, and no facts but those of a service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEINSUM_LAYERS", "remote")


@pytest.fixture
def answered(monkeypatch, tmp_path):
    """What is known where a service answers with that body, to a client without a
    cache.
    """
    bodies = iter(range(10**6))

    def ask(body):
        monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / f"cache {next(bodies)}"))
        forget()
        with chaos(answering("200 OK", body)) as server:
            monkeypatch.setenv("FEINSUM_REMOTE", server.url)
            return open_remote().candidates(LookUp({KEY: ""}))[KEY]

    return ask


@pytest.fixture
def asked(monkeypatch):
    """What a look-up finds where a service answers with that body."""

    def ask(body):
        with chaos(answering("200 OK", body)) as server:
            monkeypatch.setenv("FEINSUM_REMOTE", server.url)
            return look_up(reduction().kernel)

    return ask


def test_only_records_are_taken_from_an_answer(answered, tmp_path):
    """They are what their ids say, of this workload; a bad one spoils no other."""
    for name, bad in BAD_ENTRIES.items():
        found = answered(best(bad, entry(GOOD)))
        assert GOOD in found, name
        assert all(compute_content_id(record) == record.id for record in found), name
        assert {record.workload for record in found} == {KEY}, name
    assert not (tmp_path / "exploded").exists()


def test_among_all_of_them_the_good_one_is_found(asked, tmp_path):
    """However many there are; and what it computes is right."""
    found = asked(best(*BAD_ENTRIES.values(), entry(BETTER)))
    assert found.applied == (BETTER.spec,)
    assert_right(reduction(), found.t_unit)
    assert not (tmp_path / "exploded").exists()


def test_where_there_are_no_others_the_kernel_is_unchanged(monkeypatch, tmp_path):
    """One warning, whatever the answer."""
    with chaos(answering("200 OK", best(*BAD_ENTRIES.values()))) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        assert "no recorded recipe could be applied" in why_unchanged(
            reduction().kernel
        )
    assert not (tmp_path / "exploded").exists()


def test_a_hostile_body_is_a_failure(answered, tmp_path):
    """Nothing is taken from it."""
    for body in BAD_BODIES.values():
        with pytest.raises(StoreUnavailableError, match="answered with"):
            answered(body)
    assert not (tmp_path / "exploded").exists()


def test_the_ranking_of_a_service_is_not_believed(asked):
    """Neither its order, nor how near it says that a fact is, nor what is slower."""
    first = entry(GOOD, nearness="device")
    last = entry(BETTER, nearness="other")
    assert asked(best(first, last)).applied == (BETTER.spec,)
    assert asked(best(first, slower=[last])).applied == (BETTER.spec,)


def test_a_tag_that_is_none_is_not_sent_back(monkeypatch, tmp_path):
    """What stands in a header comes into no other one."""
    for n, etag in enumerate(
        ("x", '"' + "x" * 10_000 + '"', '"a" "b"', '"\x07"', "W/", "")
    ):
        monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / f"cache {n}"))
        forget()
        headers = {"ETag": etag, "Cache_Control": "no-cache"}
        with chaos(answering("200 OK", best(entry(GOOD)), **headers)) as server:
            monkeypatch.setenv("FEINSUM_REMOTE", server.url)
            for _ in range(2):
                found = open_remote().candidates(LookUp({KEY: ""}))
                assert found == {KEY: (GOOD,)}
            assert "if-none-match" not in server.requests[1].lower()


def test_no_answer_is_kept_for_ever():
    """A day at most."""
    for age in ("999999999999", "-1", "x", "9" * 9, None):
        header = "" if age is None else f"max-age={age}"
        with chaos(answering("200 OK", best(), Cache_Control=header)) as server:
            client = Client(parse_address(server.url))
            ((_, answer),) = request_best(client, LookUp({KEY: ""}))
            assert 0 <= answer.max_age_s <= 86400


BATCHES = {
    "none": "{}",
    "too few": '{"answers": [null]}',
    "too many": '{"answers": [null, null, null]}',
    "no answers": '{"answers": [1, "x"]}',
    "no list": '{"answers": {"0": null}}',
    "the same twice": f'{{"answers": [{best(entry(GOOD))}, {best(entry(GOOD))}]}}',
}


def test_an_answer_to_many_has_one_for_each(monkeypatch, tmp_path):
    """In their order, each about its own workload."""
    for name, body in BATCHES.items():
        monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / name))
        forget()
        with chaos(answering("200 OK", body)) as server:
            monkeypatch.setenv("FEINSUM_REMOTE", server.url)
            with pytest.raises(StoreUnavailableError):
                open_remote().candidates(LookUp({KEY: "", "fe2-other": ""}))


def test_what_is_skipped_is_logged_once(answered, caplog):
    """However much it is, in one line of a bearable length."""
    bad = [signed({"x\n": "\x1b[31m" + "y" * 10_000}) for _ in range(100)]
    answered(best(*bad))
    (record,) = [r for r in caplog.records if "skipped" in r.getMessage()]
    assert "100 facts" in record.getMessage()
    assert len(record.getMessage()) < 700
    assert record.getMessage().isprintable()
