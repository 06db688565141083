"""``feinsum db audit``, and how what is odd comes in or not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from feinsum.db import open_store
from feinsum.records import TransformSpec
from tests.cli.facts import MATVEC, matvec_record
from tests.db.factories import make_measurement, make_peaks, make_record

FAST = replace(
    make_record(),
    measurement=replace(make_measurement(), samples_s=(1e-30,) * 3),
)

FOREIGN = replace(make_record(1), spec=TransformSpec("miracle", 1, {}))


def fill(path, *documents):
    with open_store(path) as store:
        store.add_all(documents)


def test_a_sound_database_has_no_findings(run, database):
    """Nothing is listed, and the exit code is 0."""
    fill(database, replace(make_record(), spec=TransformSpec("generic", 1, {})))
    result = run("db", "audit", "--json")
    codes = {f["code"] for odd in json.loads(result.stdout) for f in odd["findings"]}
    assert codes <= {"unknown-parameters"}
    assert result.exit_code == 0


def test_what_is_odd_is_listed_and_stays(run, database):
    """With its code, what was given and expected; the exit code is 1."""
    fill(database, FAST, FOREIGN, replace(make_peaks(), bandwidth_bytes_per_s=-5.0))
    result = run("db", "audit")
    assert result.exit_code == 1
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "2 would be refused" in result.stdout
    found = json.loads(run("db", "audit", "--json").stdout)
    by_id = {odd["id"]: odd for odd in found}
    assert by_id[FAST.id]["findings"][0]["code"] == "below-resolution"
    assert by_id[FOREIGN.id]["findings"][0] == {
        **by_id[FOREIGN.id]["findings"][0],
        "code": "unknown-transform",
        "is_refused": False,
    }
    with open_store(database) as store:
        assert len(store) == 2


@pytest.mark.parametrize("command", ["merge", "import"])
def test_what_is_odd_comes_in_only_if_it_is_wanted(run, database, tmp_path, command):
    """It is named and left out, but for a copy of a database as it was."""
    source = tmp_path / "old.sqlite"
    fill(source, FAST, FOREIGN)
    if command == "import":
        lines = tmp_path / "old.jsonl"
        run("db", "export", str(lines), "--database", str(source))
        arguments = ["import", str(lines), "--skip-bad"]
    else:
        arguments = ["merge", str(source)]
    result = run("db", *arguments)
    assert result.exit_code == 1
    assert "implausible" in result.stderr
    assert "below-resolution" in result.stderr
    with open_store(database) as store:
        assert list(store.records()) == [FOREIGN]
    assert run("db", *arguments, "--with-implausible").exit_code == 0
    with open_store(database) as store:
        assert {fact.id for fact in store.records()} == {FAST.id, FOREIGN.id}


@pytest.mark.parametrize("bandwidth", [1e-300, -5.0, 1e300])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_odd_limits_and_facts_do_not_end_a_query(run, database, bandwidth, form):
    """``feinsum query`` prints what there is, whatever is stored beside it."""
    fact = matvec_record()
    odd = replace(
        matvec_record(1),
        measurement=replace(
            make_measurement(), samples_s=(1e-200, 1e-199), baseline_s=(1e100,)
        ),
    )
    limits = make_peaks(fact.environment.device, "9999-01-01T00:00:00+00:00")
    fill(database, fact, odd, replace(limits, bandwidth_bytes_per_s=bandwidth))
    result = run("query", *MATVEC, "--database", str(database), *form)
    assert result.exit_code == 0, result.stderr
    assert fact.id[:12] in result.stdout
