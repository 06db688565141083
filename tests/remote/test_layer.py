"""Answers are kept: fresh ones are not asked for, old ones serve when none come."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

import pytest

from feinsum.cache import get_default_cache
from feinsum.canonical import WorkloadKey
from feinsum.db import HttpStore, list_layer_states, open_store, opened_store
from feinsum.db.address import get_remote_url
from feinsum.db.remote import answers, layer
from feinsum.db.remote.layer import open_remote
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records import LookUp, MatchLevel, find_best_match, to_json
from feinsum.service.routes import best
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_plan_record,
    make_processor,
    make_record,
    make_workload,
)
from tests.remote.answers import best_of
from tests.remote.chaos import answering, chaos, refusing
from tests.remote.conftest import forget
from tests.remote.live import live_service
from tests.remote.test_chaos import FAILURES

OTHER = make_workload(1)
HERE = LookUp({WORKLOAD: ""}, make_device(), "default")
BOTH = LookUp({WORKLOAD: "", OTHER: "a text"}, make_device(), "default")
GOOD = make_record(0)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("service"), max_age_s=60) as service:
        yield service


@pytest.fixture
def service(running, monkeypatch):
    """A live service that knows one fact, set as the one to ask."""
    url = running.lease()
    HttpStore.at(url).add(GOOD)
    running.requests.clear()
    monkeypatch.setenv("FEINSUM_REMOTE", url)
    yield running
    running.give_back(url)


@pytest.fixture
def clock(monkeypatch):
    """Lets time pass."""

    class Clock:
        now = 1e9

        def time(self):
            return self.now

        def monotonic(self):
            return self.now

    found = Clock()
    for module in (answers, layer):
        monkeypatch.setattr(module, "time", found)
    return found


def ask(look_up=HERE):
    """What a new look-up is answered."""
    return open_remote().candidates(look_up)


def test_an_answer_is_asked_for_once(service):
    """Neither this process nor another one asks again while it is fresh."""
    assert ask() == {WORKLOAD: (GOOD,)}
    assert ask() == {WORKLOAD: (GOOD,)}
    forget()
    assert ask() == {WORKLOAD: (GOOD,)}
    assert len(service.requests) == 1


def test_a_miss_is_asked_for_once(service):
    """And counted once by the service, with the text of the workload."""
    missed = LookUp({OTHER: "a text"}, make_device(), "default")
    for _ in range(3):
        assert ask(missed) == {OTHER: ()}
        forget()
    assert service.requests == [f"GET /v1/best/{OTHER}"]


def test_an_old_answer_is_confirmed_and_not_sent_again(service, clock):
    """By its tag; from then on it is fresh again, and new facts are seen."""
    ask()
    clock.now += 61
    assert ask() == {WORKLOAD: (GOOD,)}
    forget()
    assert ask() == {WORKLOAD: (GOOD,)}
    assert len(service.requests) == 2
    HttpStore.at(get_remote_url()).add(make_record(1))
    clock.now += 61
    assert {r.id for r in ask()[WORKLOAD]} == {GOOD.id, make_record(1).id}


def test_a_cached_answer_says_what_is_trusted(service):
    """In this process, and in the next one, which reads it from disk."""
    with open_store(service.path(get_remote_url())) as owned:
        owned.add(make_record(1))
    for _ in range(3):
        marks = {record.id: record.is_trusted for record in ask()[WORKLOAD]}
        assert marks == {GOOD.id: False, make_record(1).id: True}
        forget()
    assert service.requests == [f"GET /v1/best/{WORKLOAD}"]


def test_plans_of_the_untrusted_are_not_asked_for(service):
    """They would be of no use, and could be any number."""
    record = make_plan_record()
    assert HttpStore.at(get_remote_url()).add(record)
    assert open_remote().plans(record.workload) == ()
    with open_serving_store(service.path(get_remote_url())) as owned:
        owned.add(record)
    assert open_remote().plans(record.workload) == (record,)


def test_an_old_miss_is_asked_for_again(service, clock):
    """When a minute has gone, facts that came meanwhile are found."""
    assert ask(BOTH) == {WORKLOAD: (GOOD,), OTHER: ()}
    found = make_record(workload=OTHER)
    HttpStore.at(get_remote_url()).add(found)
    assert ask(BOTH)[OTHER] == ()
    clock.now += 61
    assert ask(BOTH)[OTHER] == (found,)


def test_what_is_needed_together_is_asked_together(service):
    """Many workloads are one request; those that are known are not in it."""
    many = LookUp({WorkloadKey(f"fe1-{n}"): "" for n in range(150)}, make_device())
    assert set(ask(many).values()) == {()}
    assert service.requests == ["POST /v1/best:batch"]
    ask(many)
    assert len(service.requests) == 1
    ask(replace(many, workloads={**many.workloads, WORKLOAD: ""}))
    assert service.requests[1:] == [f"GET /v1/best/{WORKLOAD}"]


@pytest.mark.parametrize("is_store", [True, False])
def test_what_had_no_room_is_asked_for_again(service, is_store, monkeypatch):
    """Until everything is answered, in as many batches as that takes."""
    store = HttpStore.at(os.environ["FEINSUM_REMOTE"])
    facts = [make_record(0, workload=make_workload(n)) for n in range(10, 14)]
    for fact in facts:
        store.add(fact)
    n_bytes = len(to_json(facts[0]))
    monkeypatch.setattr(best, "ANONYMOUS_BYTES", 11 * n_bytes // 4)
    wanted = LookUp({fact.workload: "" for fact in facts}, make_device(), "default")
    service.requests.clear()
    found = (store if is_store else open_remote()).candidates(wanted)
    assert found == {fact.workload: (fact,) for fact in facts}
    assert len(service.requests) == 2


def test_a_long_text_is_sent_in_a_body(service):
    """For no URL is so long; one that is too long is left out."""
    for length, n_sent in ((19_000, 1), (30_000, 2)):
        ask(LookUp({WorkloadKey(f"fe1-{length}"): "x" * length}, make_device()))
        assert service.requests == ["POST /v1/best:batch"] * n_sent


def test_facts_of_another_processor_are_answered(service):
    """One that the service does not know is looked up by its architecture, for one
    workload and for several.
    """
    here = make_device(processor=make_processor("zen5"))
    for policy, found in (("strict", ()), ("default", (GOOD,)), ("loose", (GOOD,))):
        for many in ({}, {OTHER: ""}):
            forget()
            answer = ask(LookUp({WORKLOAD: "", **many}, here, policy))[WORKLOAD]
            assert answer == found
        if answer:
            match = find_best_match(answer, make_environment(here), policy)
            assert match.level == MatchLevel.SAME_ARCHITECTURE


def test_devices_and_policies_have_answers_of_their_own(service):
    """What is kept for one is not taken for another."""
    elsewhere = replace(make_device(7), architecture="riscv64")
    assert ask(replace(HERE, device=elsewhere)) == {WORKLOAD: ()}
    assert ask(replace(HERE, device=elsewhere, policy="loose")) == {WORKLOAD: (GOOD,)}
    assert ask(LookUp({WORKLOAD: ""})) == {WORKLOAD: (GOOD,)}
    assert ask() == {WORKLOAD: (GOOD,)}


@pytest.mark.parametrize("behave", [*FAILURES.values()], ids=FAILURES)
def test_old_answers_serve_when_none_come(behave, clock, caplog, monkeypatch):
    """Those of this process or of the disk, with one warning; new questions miss."""
    with chaos(answering("200 OK", best_of(GOOD), ETag='"1"')) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        assert ask() == {WORKLOAD: (GOOD,)}
        server.behave = behave
        clock.now += 10_000
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                remote = open_remote()
                assert remote.candidates(BOTH) == {WORKLOAD: (GOOD,), OTHER: ()}
                (state,) = list_layer_states(remote)
                assert "answered from disk, because the service" in str(state)
            assert len(caplog.records) == 1
            forget()
            assert ask(BOTH) == {WORKLOAD: (GOOD,), OTHER: ()}
        assert server.n_connections == 2


def test_after_a_minute_a_service_is_asked_again(clock, monkeypatch):
    """And when it answers, all is forgotten; a clock that goes back is no failure."""
    with chaos(answering("500 No", "")) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        for seconds, n_connections in ((0, 1), (30, 1), (31, 2), (59, 2)):
            clock.now += seconds
            with pytest.raises(StoreUnavailableError, match="status 500"):
                ask()
            assert server.n_connections == n_connections
        server.behave = answering("200 OK", best_of(GOOD))
        clock.now -= 1000
        assert ask() == {WORKLOAD: (GOOD,)}
        server.behave = answering("200 OK", best_of())
        forget()
        assert ask(LookUp({WORKLOAD: ""})) == {WORKLOAD: ()}
        assert server.n_connections == 4


def test_with_another_key_a_service_is_asked_at_once(monkeypatch):
    """Who got a new key in the place of an expired one need not wait."""
    with chaos(refusing(401, "not-authenticated", "expired")) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        for key, n_connections in (("old", 1), ("old", 1), ("new", 2)):
            monkeypatch.setenv("FEINSUM_REMOTE_KEY", key)
            with pytest.raises(StoreUnavailableError):
                ask()
            assert server.n_connections == n_connections
        assert "Authorization: Bearer new\r\n" in server.requests[1]


def test_all_questions_of_a_look_up_share_a_budget(clock, monkeypatch):
    """When it is used up nothing more is asked."""
    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "300")

    def slowly(server, stream):
        clock.now += 0.4
        answering("200 OK", best_of(GOOD))(server, stream)

    with chaos(slowly) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        remote = open_remote()
        assert remote.candidates(HERE) == {WORKLOAD: (GOOD,)}
        with pytest.raises(StoreUnavailableError, match="used up the budget of 300 ms"):
            remote.candidates(LookUp({OTHER: ""}))
        assert server.n_connections == 1


def test_without_a_cache_answers_live_in_the_process(monkeypatch):
    """And so does the failure."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", "off")
    with chaos(answering("200 OK", best_of(GOOD))) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        assert ask() == ask() == {WORKLOAD: (GOOD,)}
        assert server.n_connections == 1
        server.behave = answering("500 No", "")
        forget()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                ask()
        assert server.n_connections == 2


def test_damage_on_disk_is_an_answer_that_is_not_there(service, tmp_path):
    """It is asked for again."""
    ask()
    (path,) = (tmp_path / "cache").glob("*.entry")
    path.write_bytes(path.read_bytes()[:-10])
    forget()
    assert ask() == {WORKLOAD: (GOOD,)}
    assert len(service.requests) == 2


def test_what_is_signed_and_still_no_answer_is_none(service):
    """What is read from disk is checked as what is sent."""
    kept = answers.AnswerCache(open_remote().address, HERE)
    for content in (
        *(b"", b"{}", b"[]", b"\xff", b"null\n{}", b"[" * 10_000),
        b'{"at": "x", "max_age_s": 1}',
        b'{"at": 1e9, "max_age_s": 60}\n{}',
    ):
        forget()
        get_default_cache().write(kept.name_of(WORKLOAD), content)
        assert ask() == {WORKLOAD: (GOOD,)}


def test_facts_of_another_workload_on_disk_are_none(service):
    """Whoever may write to the cache cannot make a fact answer another look-up."""
    HttpStore.at(get_remote_url()).add(make_record(workload=OTHER))
    ask(LookUp({OTHER: ""}, make_device(), "default"))
    cached, disk = answers.AnswerCache(open_remote().address, HERE), get_default_cache()
    disk.write(cached.name_of(WORKLOAD), disk.read(cached.name_of(OTHER)))
    forget()
    assert ask() == {WORKLOAD: (GOOD,)}


def test_a_layer_of_a_service_is_a_source(service):
    """It is read as one, but for what would be all of it."""
    remote = open_remote()
    assert remote.get(GOOD.id) == GOOD
    for record_id in ("x", "0" * 64):
        with pytest.raises(RecordNotFoundError):
            remote.get(record_id)
    assert remote.query(WORKLOAD, device_id=make_device().id) == (GOOD,)
    assert remote.query(WORKLOAD, device_id="another") == ()
    assert tuple(remote.records()) == ()
    assert remote.peaks(make_device().id) is None
    remote.close()


def test_the_service_is_one_of_the_layers(service, monkeypatch):
    """What is known is the union; it is the last to be asked, and can be left out."""
    with opened_store(None, has_shipped=True, may_create=True) as store:
        store.add(make_record(1, environment=make_environment(driver="7.0")))
        found = store.candidates(HERE)[WORKLOAD]
        assert len(found) == 2
        assert [r.id for r in found] == sorted(r.id for r in found)
        assert list_layer_states(store)[-1].name == "remote"
        assert store.get(GOOD.id) == GOOD
    monkeypatch.setenv("FEINSUM_LAYERS", "user")
    with opened_store(None, has_shipped=True) as store:
        assert GOOD not in store.candidates(HERE)[WORKLOAD]


def test_many_failures_are_one_warning(monkeypatch, caplog):
    """Also where the other layers answer."""
    with chaos(answering("500 No", "")) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                with opened_store(None, has_shipped=True) as store:
                    assert store.candidates(HERE) == {WORKLOAD: ()}
                    assert "status 500" in list_layer_states(store)[-1].problem
        assert len(caplog.records) == 1
