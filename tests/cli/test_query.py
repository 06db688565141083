"""``feinsum query``."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from feinsum.calling.structure import find_call_of
from feinsum.canonical import canonicalize
from feinsum.cli.explain import query
from feinsum.cli.shared.records import format_median, format_speedup
from feinsum.db import HttpStore, open_store
from feinsum.errors import TransformError
from feinsum.ir import array, einsum
from feinsum.records import InMemoryStore, Policy, rank
from feinsum.retrieval.lookup import recall_selection
from tests.cli.facts import MATVEC, fast_peaks, matvec_record, sized
from tests.cli.tuning import trials
from tests.remote.live import live_service
from tests.retrieval.facts import fact
from tests.retrieval.recipes import first_recipe


def test_a_fact_is_found_and_ranked(run, known_records):
    """Exit code 0, the level, the reason, and the candidates, the best first."""
    result = run("query", *MATVEC, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["level"] == "exact"
    assert "candidates" in document["reason"]
    ranked = rank(known_records)
    assert [c["id"] for c in document["candidates"]] == [r.id for r in ranked]
    assert document["candidates"][0]["median_s"] == ranked[0].measurement.median_s
    assert document["candidates"][0]["spread_s"] == ranked[0].measurement.spread_s
    assert document["candidates"][0]["spec"] == str(ranked[0].spec)


def test_the_facts_of_a_call_with_merged_axes_are_found(run, ask, database):
    """Calls look the einsum up as it is written, then as few axes as possible."""
    operands = array("A", (30, 40, 50)), array("b", 30)
    options = "bij,b->bij", "--sizes", "b=30,i=40,j=50"
    written = einsum("bij,b->bij", *operands)
    merged = find_call_of(written).einsum
    with open_store(database) as store:
        for subject in (merged, written):
            form = canonicalize(subject)
            known = fact(subject, first_recipe(form.einsum))
            store.add(known)
            result = run("query", *options)
            assert result.exit_code == 0
            assert ("merged, as calls are: " in result.stdout) == (subject is merged)
            document = ask("query", *options)
            (candidate,) = document["candidates"]
            assert (document["key"], candidate["id"]) == (form.key, known.id)


def test_a_miss_after_a_tuning_says_what_was_tried(run, ask, database):
    """It asks for more trials than there were, not for those of before."""
    with open_store(database) as store:
        for trial in trials():
            store.add(trial)
    result = run("query", *MATVEC)
    assert result.exit_code == 3
    last = max(trial.recorded_at for trial in trials())[:10]
    words = f"recipes tried on this device: 2, 1 passed, the last on {last}; "
    assert f"{words}none is used, for the reason above" in result.stdout
    assert result.stdout.endswith(" --trials 20\n")
    tried = ask("query", *MATVEC)["tried"]
    assert tried == {"recipes": 2, "passed": 1, "last": last}


def test_a_miss_of_a_service_says_that_nothing_was_faster(run, ask, tmp_path):
    """It serves no such facts and stores no trials, but it lists the facts."""
    fact = matvec_record()
    halved = (fact.measurement.median_s / 2,)
    slower = replace(fact, measurement=replace(fact.measurement, baseline_s=halved))
    with live_service(tmp_path) as service:
        url = service.lease()
        HttpStore.at(url).add(slower)
        text = run("query", *MATVEC, "--database", url).stdout
        document = ask("query", *MATVEC, "--database", url)
    last = slower.recorded_at[:10]
    assert f"1 fact is recorded, the last on {last}, but none beats" in text
    assert "recipes tried on this device: 1, 1 passed" in text
    assert document["reason"] in text
    assert document["tried"] == {"recipes": 1, "passed": 1, "last": last}


def test_a_recipe_that_was_tuned_twice_has_one_row(run, ask, database):
    """The best of its records; JSON has them all."""
    with open_store(database) as store:
        for number in range(2):
            store.add(matvec_record(number, spec=matvec_record().spec))
    shown = run("query", *MATVEC).stdout
    assert shown.count(str(matvec_record().spec)) == 2  # in the reason, and the table
    assert "\nand 1 more record of these recipes; see --json\n" in shown
    document = ask("query", *MATVEC)
    assert len(document["candidates"]) == 2


def test_a_row_has_every_number_and_ends_with_the_recipe(run, known_records):
    """Nothing is cut off at 80 columns, and the recipe can be copied."""
    result = run("query", *MATVEC)
    assert result.exit_code == 0
    table = result.stdout.splitlines()[1:]
    for record in known_records:
        row = next(line for line in table if record.id[:12] in line)
        assert format_speedup(record) in row
        assert format_median(record) in row
        assert row.endswith(f"  {record.spec}")


def test_no_fact_is_exit_code_3(run):
    """A miss is no failure: exit code 3 and the reason on stdout."""
    open_store().close()
    text, document = run("query", *MATVEC), run("query", *MATVEC, "--json")
    assert text.exit_code == document.exit_code == 3
    assert "match: miss (no fact is recorded" in text.stdout
    found = json.loads(document.stdout)
    assert found.pop("key").startswith("fe2-")
    assert found.pop("tune").startswith("feinsum tune ")
    assert found == {
        "level": "miss",
        "reason": "no fact is recorded for this workload",
        "candidates": [],
        "predicted": [],
        "bound": None,
        "plans": [],
        "tried": None,
    }
    assert text.stderr == document.stderr == ""


def test_a_miss_says_what_would_be_used(run, monkeypatch):
    """Calls and retrievals try a prediction without a fact: it is named, with code 3;
    not if the effort allows only what was measured.
    """
    open_store().close()
    text = run("explain", *MATVEC, "--effort", "estimate")
    data = run("explain", *MATVEC, "--effort", "estimate", "--json")
    assert text.exit_code == data.exit_code == 3
    document = json.loads(data.stdout)
    assert document["candidates"] == []
    assert f"used without a fact: {document['predicted'][0]}\n" in text.stdout
    for policy in get_args(Policy):
        only = run("query", *MATVEC, "--effort", "recorded", "--policy", policy)
        assert only.exit_code == 3
        assert "used without a fact" not in only.stdout
    monkeypatch.setenv("FEINSUM_EFFORT", "estimate")
    assert "used without a fact" in run("query", *MATVEC).stdout


def test_a_prediction_that_failed_here_is_not_named(run, ask, monkeypatch):
    """Earlier trials on this machine decide which recipe is used without a fact."""
    monkeypatch.setenv("FEINSUM_VERIFY", "on")
    open_store().close()
    words = ("explain", *MATVEC, "--effort", "estimate")
    first = ask(*words)["predicted"][0]
    failing = {first}

    def recall(trials, candidate):
        if str(candidate.recipe.spec) in failing or not failing:
            raise TransformError("no faster here")

    monkeypatch.setattr("feinsum.retrieval.kernel_trials.NestTrials.recall", recall)
    left = ask(*words)["predicted"]
    assert left
    assert first not in left
    assert f"used without a fact: {left[0]}\n" in run(*words).stdout
    failing.clear()
    assert ask(*words)["predicted"] == []
    result = run(*words)
    assert f"used without a fact: none; {first}: no faster here\n" in result.stdout
    assert result.exit_code == 3


def test_asking_for_earlier_trials_counts_no_demand(monkeypatch):
    """A look-up that misses has been counted before."""
    monkeypatch.setenv("FEINSUM_VERIFY", "on")
    seen = []

    class Watched(InMemoryStore):
        def candidates(self, look_up):
            seen.append(look_up.counts)
            return super().candidates(look_up)

    matvec = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    selection = recall_selection(matvec, database=Watched(), effort="estimate")
    assert selection.candidates
    assert seen
    assert not any(seen)


def test_an_index_of_the_result_needs_an_operand(run):
    """It is refused as such; no size would help."""
    result = run("query", "ij,jk->il", "--sizes", "i=3,j=3,k=3")
    assert result.exit_code == 2
    assert "the result has the index 'l', which no operand has" in result.stderr
    assert "indices 'i', 'j', 'k'" in result.stderr
    assert "no size" not in result.stderr


def test_explain_of_an_einsum_is_query(run, known_records):
    """The same output and exit code; options of a kernel are refused."""
    assert run("explain", *MATVEC).stdout == run("query", *MATVEC).stdout
    refused = run("explain", *MATVEC, "--instructions", "id:a")
    assert refused.exit_code == 2
    assert "--instructions: this is an option of a kernel" in refused.stderr


def test_the_database_can_be_named(run, tmp_path, database):
    """``--database`` is asked instead of the default; an empty one counts as not
    given, as an unset variable of a shell does.
    """
    path = str(tmp_path / "other.sqlite")
    with open_store(path) as store:
        store.add(matvec_record())
    open_store(database).close()
    for given, exit_code in ((path, 0), ("", 3), (" ", 3)):
        assert run("query", *MATVEC, "--database", given).exit_code == exit_code
    assert run("query", *MATVEC).exit_code == 3


def test_the_policies_are_those_of_the_library():
    """The choices of ``--policy`` are the library's."""
    choices, _ = get_args(get_type_hints(query)["policy"])
    assert get_args(choices) == get_args(Policy)


def test_the_fraction_of_the_roofline_is_shown(run, ask, known_records, database):
    """The least time that the stored limits allow, over the median; without limits, or
    with those of another dtype, null.
    """

    def fractions():
        found = ask("query", *MATVEC)["candidates"]
        return {c["median_s"]: c["fraction_of_roofline"] for c in found}

    peaks = fast_peaks(known_records[0].environment.device)
    assert set(fractions().values()) == {None}
    assert "roof" not in run("query", *MATVEC).stdout
    with open_store(database) as store:
        store.add(replace(peaks, operations_per_s={"<f4": 1e11}))
    assert set(fractions().values()) == {None}
    with open_store(database) as store:
        store.add(replace(peaks, measured_at="2025-02-01T00:00:00"))
    for median_s, fraction in fractions().items():
        assert fraction == pytest.approx(8000 / 2e8 / median_s)
    table = run("query", *MATVEC).stdout
    assert "roof" in table
    assert "4.00%" in table


def test_what_the_einsum_costs_at_least_is_shown(run, ask, database):
    """A mark for every level: bytes, and times where limits are stored."""
    record = sized(matvec_record())
    with open_store(database) as store:
        store.add(record)
    shown = run("query", *MATVEC).stdout
    assert "at least: " in shown
    assert "DRAM 0.04003 MB" in shown
    with open_store(database) as store:
        store.add(fast_peaks(record.environment.device))
    result = run("query", *MATVEC)
    assert "DRAM 0.2002 ms (20%)" in " ".join(result.stdout.split())
    bound = ask("query", *MATVEC)["bound"]
    assert bound["levels"][-1]["seconds"] == pytest.approx(40_032 / 2e8)


def test_a_miss_has_the_key_and_a_command_that_can_be_run(run):
    """In text and in JSON; the command tunes this very einsum."""
    einsum = ("abq,bq->aq", "--sizes", "a=7,b=n,q=11")
    missed = run("query", *einsum, "--policy", "strict", "--json")
    assert missed.exit_code == 3
    document = json.loads(missed.stdout)
    words = shlex.split(document["tune"])
    assert words[:2] == ["feinsum", "tune"]
    same = run("canonicalize", words[2])
    assert document["key"] in same.stdout
    lines = run("query", *einsum, "--policy", "strict").stdout.splitlines()
    assert f"key: {document['key']}" in lines
    assert f"  {document['tune']}" in lines
