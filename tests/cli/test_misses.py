"""``feinsum tune --from-misses``: what was asked for in vain, the most wanted first."""

from __future__ import annotations

import json
import re

import pytest

from feinsum.canonical import canonicalize
from feinsum.cli.shared.notation import read_einsum
from feinsum.db import open_store
from feinsum.db.server.serving import open_serving_store
from feinsum.errors import MeasurementError
from feinsum.measure import open_device
from feinsum.records import Miss
from feinsum.service import make_key
from tests.cli.tuning import good
from tests.remote.chaos import answering, chaos
from tests.remote.live import served_here
from tests.service.conftest import add_misses


def form(j):
    return canonicalize(read_einsum("ij,j->i", ["i=n", f"j={j}"]))


FORMS = [form(j) for j in (3, 4, 5)]


@pytest.fixture
def wanted(tmp_path):
    """A database where three workloads are in demand: 2, 3 and 1 times."""
    path = tmp_path / "team.sqlite"
    here = open_device().device
    counts = {
        Miss(FORMS[0].key, ""): 2,
        Miss(FORMS[1].key, here.id): 3,
        Miss(FORMS[2].key, here.name): 1,
        Miss(form(6).key, ""): 9,
        Miss(form(7).key, "elsewhere"): 9,
    }
    texts = {f.key: f.text for f in (*FORMS, form(7))}
    with open_serving_store(path) as store:
        add_misses(store, counts, texts)
    return path


def told(result):
    return [
        int(n) for n in re.findall(r"^requested (\d+) times?:", result.stdout, re.M)
    ]


def test_the_most_wanted_are_tuned_first(run, autotune, wanted):
    """Those with a text and for this device, by count; facts go to their database."""
    seen = autotune()
    result = run("tune", "--from-misses", str(wanted), "--trials", "5")
    assert result.exit_code == 0, result.stderr
    assert told(result) == [3, 2, 1]
    assert (seen["n_trials"], canonicalize(seen["target"]).key) == (5, FORMS[2].key)
    assert "tuned 3 of 3" in result.stdout
    with open_store(wanted) as store:
        assert store.get(good().id) == good()


def test_no_more_than_wanted(run, autotune, wanted):
    """``--workloads`` ends after so many."""
    autotune()
    result = run("tune", "--from-misses", str(wanted), "--workloads", "2")
    assert told(result) == [3, 2]


def test_a_failure_ends_only_its_own_tuning(run, autotune, wanted):
    """Every workload is tried; the exit code says that some failed."""
    autotune(n_recorded=0)
    result = run("tune", "--from-misses", str(wanted))
    assert (result.exit_code, told(result)) == (1, [3, 2, 1])
    assert result.stderr.count(MeasurementError.code) == 3


def test_what_says_something_else_is_bad_usage(run, autotune, wanted):
    """Options that describe a workload do not go with it; nor does nothing at all."""
    for more in (["ij->i"], ["--json"], ["--report", "x"], ["--sizes", "i=3"]):
        autotune()
        assert run("tune", "--from-misses", str(wanted), *more).exit_code == 2
        assert run("tune").exit_code == 2


def test_misses_come_from_a_service(run, autotune, wanted, tmp_path, monkeypatch):
    """By URL with a key; facts go to the user's own database. Without it, a refusal."""
    autotune()
    secret, key = make_key("tuner", "read")
    with open_serving_store(wanted) as store:
        store.add_key(key)
    with served_here(str(wanted), tmp_path, anonymous_read=False) as server:
        refused = run("tune", "--from-misses", server.url)
        assert (refused.exit_code, "not-authenticated" in refused.stderr) == (1, True)
        monkeypatch.setenv("FEINSUM_REMOTE_KEY", secret)
        result = run("tune", "--from-misses", server.url)
        lost = run("tune", "--from-misses", f"{server.url}/v2")
        there = run("demand", "list", "--database", server.url, "--json").stdout
    assert told(result) == [3, 2, 1]
    assert there == run("demand", "list", "--database", str(wanted), "--json").stdout
    assert "no-such-route" in lost.stderr
    gone = run("tune", "--from-misses", server.url)
    assert (gone.exit_code, "store-unavailable" in gone.stderr) == (1, True)


def test_a_document_of_another_kind_is_refused(run, autotune):
    """An answer without demands is named as such."""
    for demand in ("x", {"count": "many"}, None):
        autotune()
        with chaos(
            answering("200 OK", json.dumps({"demands": [demand], "next": None}))
        ) as s:
            result = run("tune", "--from-misses", s.url)
        assert (result.exit_code, "something other" in result.stderr) == (1, True)


def test_what_was_found_is_sent_to_the_service(
    run, autotune, wanted, tmp_path, monkeypatch
):
    """With the service as the database, and a key to record."""
    autotune()
    keys = {scope: make_key(scope, scope) for scope in ("read", "record")}
    with open_serving_store(wanted) as store:
        for _, key in keys.values():
            store.add_key(key)
    with served_here(str(wanted), tmp_path, anonymous_record=False) as server:
        command = ["tune", "--from-misses", server.url, "--database", server.url]
        more = ["--workloads", "1"]
        monkeypatch.setenv("FEINSUM_REMOTE_KEY", keys["read"][0])
        refused = run(*command, *more)
        assert (refused.exit_code, "not-permitted" in refused.stderr) == (1, True)
        monkeypatch.setenv("FEINSUM_REMOTE_KEY", keys["record"][0])
        result = run(*command, *more)
        assert result.exit_code == 0, result.stderr
        asked = run("query", FORMS[1].text, "--database", server.url)
        assert (asked.exit_code, "match: exact" in asked.stdout) == (0, True)
    with open_store(wanted) as store:
        assert store.query(FORMS[1].key) == (good(),)


def test_demand_that_does_not_fit_is_refused_by_name(run, tmp_path):
    """Whoever asks for it starts nothing: no process, and no array is made."""
    sizes = [f"{letter}=20000" for letter in "ijklmn"]
    chain = canonicalize(read_einsum("ij,jk,kl,lm,mn->in", sizes))
    path = tmp_path / "team.sqlite"
    with open_serving_store(path) as store:
        add_misses(store, {Miss(chain.key, ""): 1}, {chain.key: chain.text})
    result = run("tune", "--from-misses", str(path))
    assert result.exit_code == 1
    assert "GB of memory" in result.stderr
    assert "tuned 0 of 1" in result.stdout
