"""``feinsum recorders``, ``feinsum keys trust`` and ``feinsum db confirm``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from feinsum.db.server import open_serving_store
from feinsum.ir import from_text
from feinsum.transforms import configurations, find_transform
from tests.cli.facts import matvec_record

SINCE = ("--since", "2026-01-01")


@pytest.fixture
def sent(database):
    """Two facts of one recorder, and one of another; all wait."""
    facts = [matvec_record(n) for n in range(3)]
    with open_serving_store(database) as store:
        for fact, name in zip(facts, ("eve", "eve", "ann"), strict=True):
            store.receive(fact, name, 3)
    return facts


def listed(run):
    found = json.loads(run("recorders", "list", "--json").stdout)
    return {
        one["recorder"]: (one["n_served"], one["n_waiting"], one["n_rejected"])
        for one in found
    }


def test_recorders_are_listed_with_what_became_of_it(run, sent):
    """By name, in a table of 80 columns and as JSON."""
    assert listed(run) == {"ann": (0, 1, 0), "eve": (0, 2, 0)}
    table = run("recorders", "list").stdout
    assert max(map(len, table.splitlines())) <= 80
    assert "eve" in table


def test_a_decision_is_dry_unless_it_is_written(run, sent, database):
    """It lists what it would decide; then it decides, and can be taken back."""
    dry = run("recorders", "reject", "eve", *SINCE)
    assert "2 facts of eve would be rejected" in dry.stdout
    assert listed(run)["eve"] == (0, 2, 0)
    assert run("recorders", "reject", "eve", *SINCE, "--write").exit_code == 0
    assert listed(run) == {"ann": (0, 1, 0), "eve": (0, 0, 2)}
    done = json.loads(
        run("recorders", "accept", "eve", *SINCE, "--write", "--json").stdout
    )
    assert (len(done["ids"]), done["is_written"]) == (2, True)
    assert listed(run)["eve"] == (2, 0, 0)
    with open_serving_store(database) as store:
        assert len(store) == 2


def test_a_decision_is_about_a_time(run, sent):
    """What came before is left alone; a time that is none is bad usage."""
    later = run("recorders", "reject", "eve", "--since", "2999-01-01", "--write")
    assert "0 facts" in later.stdout
    assert run("recorders", "reject", "eve", "--since", "soon").exit_code == 2


def test_a_key_is_marked_trusted_and_no_more(run):
    """The list says so; administrators always are."""
    made = json.loads(run("keys", "create", "ci", "--trusted", "--json").stdout)
    run("keys", "create", "root", "--scope", "admin")
    assert made["is_trusted"]

    def trusted():
        found = json.loads(run("keys", "list", "--json").stdout)
        return {key["name"]: key["is_trusted"] for key in found}

    assert trusted() == {"ci": True, "root": True}
    assert "not trusted" in run("keys", "distrust", made["id"]).stdout
    assert trusted() == {"ci": False, "root": True}
    run("keys", "trust", made["id"])
    assert trusted()["ci"]
    assert run("keys", "trust", "00000000").exit_code == 1


def test_the_winner_is_measured_here(run, database):
    """What was claimed and what was seen stand beside each other; it vouches."""
    fact = matvec_record()
    generic = find_transform("generic", 2)
    spec = next(configurations(generic, from_text(fact.workload_text)))
    claim = replace(fact, spec=spec)
    with open_serving_store(database) as store:
        store.receive(claim, "eve", 3)
    dry = run("db", "confirm")
    assert "with --write" in dry.stdout
    result = run("db", "confirm", "--write", "--json")
    (found,) = json.loads(result.stdout)
    assert (found["id"], found["problem"]) == (claim.id, "")
    assert found["is_contradicted"] == (2 * found["measured_speedup"] < 10)
    assert (result.exit_code == 1) == found["is_contradicted"]
    with open_serving_store(database) as store:
        (seen,) = (r for r in store.query(claim.workload) if r.id != claim.id)
    assert (seen.spec, seen.measurement.sizes) == (spec, claim.measurement.sizes)
