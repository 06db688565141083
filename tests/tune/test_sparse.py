"""Recipes for a sparse operand are tuned, recorded, and carried like all others."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from feinsum import call_einsum, canonicalize, query, record_facts
from feinsum.calling.kernel_cache import Calls
from feinsum.db import open_store
from feinsum.db.exchange.files import read_lines, write_lines
from feinsum.errors import FeinsumWarning, InvalidEinsumError, RecordNotFoundError
from feinsum.ir import generalize
from feinsum.measure import open_device
from feinsum.measure.judging import choose_quick_sizes, judge_recipe
from feinsum.measure.verdicts import VerificationRequest
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.nests import Nest
from feinsum.records import InMemoryStore, MatchLevel, from_json, to_json
from feinsum.records.plausibility import check_plausible, judge
from feinsum.retrieval.verifiers import request_verdict
from feinsum.sparse import random_profile, to_dense
from feinsum.tuning import make_problem, tune_einsum
from tests.sparse_facts import PROFILE, RANK, SHAPE, SPECS, mttkrp, mttkrp_record


def profile_sizes(profile=PROFILE):
    return {f"nodes.{level}": n for level, n in enumerate(profile)}


def operands(profile=PROFILE):
    rng = np.random.default_rng(0)
    tree = random_profile(SHAPE, profile, seed=0)
    return tree, rng.random((SHAPE[1], RANK)), rng.random((SHAPE[2], RANK))


def facts(*records):
    store = InMemoryStore()
    for record in records:
        store.add(record)
    return store


def called(subscripts, *arrays, **options):
    """The result of a call, and the nest that computed it."""
    with use_fresh_memory():
        found = call_einsum(subscripts, *arrays, **options)
        made = [
            v
            for v in get_remembered(Calls).sparse._entries.values()
            if hasattr(v, "nest")
        ]
        return found, made[0]


def test_the_profile_is_sizes_of_the_problem():
    """As it is given; a usual one where it is not."""
    problem = make_problem(mttkrp(), profile_sizes())
    assert problem.workload.nodes == PROFILE
    assert sorted(problem.sizes) == ["N0", "N1", "N2", *sorted(profile_sizes())]
    assert len(make_problem(mttkrp()).workload.nodes) == 3


@pytest.mark.parametrize(
    ("sizes", "match"),
    [({"nodes.0": 4}, "lacks"), (profile_sizes((41, 300, 2000)), "profile"),
     (profile_sizes((38, 30, 2000)), "profile"), ({"nodes.3": 4}, "positive values")],
)  # fmt: skip
def test_a_profile_that_no_tree_has_is_refused(sizes, match):
    """By name, before anything is started."""
    with pytest.raises(InvalidEinsumError, match=match) as caught:
        make_problem(mttkrp(), sizes)
    assert caught.value.rules == ("size",)


def test_a_recipe_is_verified_timed_and_recorded(tmp_path):
    """On the tree of the profile, and on ragged ones; and the fact is plausible."""
    fact = record_facts(
        mttkrp(),
        SPECS["factorized"],
        sizes=profile_sizes(),
        database=tmp_path / "facts.sqlite",
    )
    check_plausible(fact)
    assert from_json(type(fact), to_json(fact)) == fact
    verified = fact.measurement.verification
    profiles = [tuple(s[n] for n in profile_sizes()) for s in verified.sizes]
    assert profiles[0] == PROFILE
    assert (1, 1, 1) in profiles[1:]
    assert (5, 20, 60) in profiles
    assert fact.measurement.operations == {"<f8": 2 * RANK * (2000 + 300)}
    assert fact.measurement.footprint_bytes == (
        2000 * 8 + 4 * (38 + 300 + 2000 + 38 + 300) + 8 * RANK * sum(SHAPE)
    )


def test_a_search_tries_recipes_of_the_family(tmp_path):
    """And keeps its trials with the profile."""
    report = tune_einsum(
        mttkrp(), sizes=profile_sizes(), database=tmp_path / "facts.sqlite", n_trials=2
    )
    assert [trial.status for trial in report.trials] == ["ok", "ok"]
    assert {trial.spec.name for trial in report.trials} == {"sparse_nest"}
    with open_store(tmp_path / "facts.sqlite") as store:
        (first, *_) = store.trials(report.problem.form.key)
    assert first.sizes == report.problem.sizes


def test_a_recipe_of_others_is_judged_on_ragged_trees():
    """Here, and in the process that verifies: it is right, and it was timed."""
    form = canonicalize(generalize(mttkrp())[0])
    host = open_device("host")
    sizes = choose_quick_sizes(form.einsum, {"N0": 40, **profile_sizes()})
    question = VerificationRequest(
        form.text, SPECS["factorized"], host.device.id, 2**30, sizes
    )
    for verdict in (judge_recipe(question, host), request_verdict(question)):
        assert verdict.is_ok, verdict.message
        assert verdict.least_s > 0
        assert verdict.sizes == sizes


@pytest.mark.parametrize(
    "known",
    [{}, {"N0": 1, "nodes.0": 1, "nodes.1": 1, "nodes.2": 1},
     {"N0": 9_000_000, "nodes.0": 8_000_000, "nodes.1": 90_000_000,
      "nodes.2": 900_000_000}],
)  # fmt: skip
def test_a_quick_timing_has_a_profile_that_there_is(known):
    """However large the tree of a call is, and if nothing is known of it."""
    from feinsum.ir import check_profile
    from feinsum.measure import count_footprint_bytes
    from feinsum.measure.judging import QUICK_BYTES

    e = canonicalize(generalize(mttkrp())[0]).einsum
    sizes = choose_quick_sizes(e, known)
    assert check_profile(e, sizes) is None
    assert count_footprint_bytes(e, sizes) <= QUICK_BYTES


@pytest.mark.parametrize("recipe", SPECS)
def test_a_call_takes_the_recipe_on_record(recipe):
    """It is found by the key, whatever the names and the order of the operands."""
    store = facts(mttkrp_record(recipe))
    tree, B, C = operands()
    right = np.einsum("ijk,ja,ka->ia", to_dense(tree), B, C)
    form = {"factorized": (4, True), "in short vectors": (2, False),
            "unfactorized": (2, False)}[recipe]  # fmt: skip
    for subscripts, arrays in (
        ("ijk,ja,ka->ia", (tree, B, C)),
        ("zr,xyz,yr->xr", (C, tree, B)),
    ):
        found, made = called(subscripts, *arrays, database=store, on_miss="raise")
        assert np.allclose(found, right)
        assert (made.form.lanes, made.form.is_chunked) == form
        assert isinstance(made.nest, Nest)
        is_one_loop = len(set(map(frozenset, made.nest.orders))) == 1
        assert is_one_loop == (recipe == "unfactorized")


def test_the_nearest_profile_is_taken():
    """Of several facts about one einsum; within a tenth it is the same one."""
    far = (40, 1000, 20_000)
    store = facts(
        mttkrp_record("factorized", 0),
        mttkrp_record("in short vectors", 1, profile=far),
    )
    _, near = called("ijk,ja,ka->ia", *operands(), database=store)
    assert near.form.lanes == 4
    _, other = called("ijk,ja,ka->ia", *operands((40, 900, 17_000)), database=store)
    assert other.form.lanes == 2


@pytest.mark.parametrize(
    ("profile", "level"),
    [((38, 300, 2100), MatchLevel.EXACT),
     ((38, 300, 2300), MatchLevel.NEAREST_EXTENTS)],
)  # fmt: skip
def test_a_profile_within_a_tenth_is_the_same(profile, level):
    """By the distance of extents; the policy strict takes no other."""
    store = facts(mttkrp_record("factorized"))
    match = query(mttkrp(), database=store, device="host", sizes=profile_sizes(profile))
    assert match.level == level
    if level != MatchLevel.EXACT:
        assert "distance" in match.reason
        strict = {"policy": "strict", "device": "host", "sizes": profile_sizes(profile)}
        assert not query(mttkrp(), database=store, **strict).is_hit


def test_a_call_without_a_recipe_says_so_where_it_is_asked_to():
    """By default the nest is estimated."""
    arrays = operands()
    found, made = called("ijk,ja,ka->ia", *arrays, database=InMemoryStore())
    assert made.nest is not None
    assert np.isfinite(found).all()
    with pytest.raises(RecordNotFoundError, match="no fact"):
        called("ijk,ja,ka->ia", *arrays, database=InMemoryStore(), on_miss="raise")
    with pytest.warns(FeinsumWarning, match="estimated"):
        called("ijk,ja,ka->ia", *arrays, database=InMemoryStore(), on_miss="warn")


def test_a_recipe_that_fits_no_more_is_passed_over():
    """A fact may say anything: the next best one is taken."""
    bad = mttkrp_record("factorized")
    parameters = {**bad.spec.parameters, "lane": "a"}
    bad = replace(bad, spec=replace(bad.spec, parameters=parameters))
    store = facts(bad, mttkrp_record("in short vectors", 1))
    _, made = called("ijk,ja,ka->ia", *operands(), database=store, on_miss="raise")
    assert made.form.lanes == 2


def test_facts_go_to_other_databases_and_back():
    """As lines of text, and they are found there."""
    record = mttkrp_record("in short vectors")
    stream = BytesIO()
    write_lines([record], stream)
    stream.seek(0)
    ((_, found),) = read_lines(stream)
    assert found == record
    _, made = called("ijk,ja,ka->ia", *operands(), database=facts(found))
    assert made.form.lanes == 2


@pytest.mark.parametrize(
    "change",
    [{"nodes.2": 0}, {"nodes.0": 41}, {"nodes.2": 10**9}, {"nodes.3": 5},
     {"N0": None}, {"nodes.1": None}],
)  # fmt: skip
def test_facts_with_a_profile_that_no_tree_has_are_refused(change):
    """Wherever they come in."""
    record = mttkrp_record("factorized")
    assert judge(record) == ()
    sizes = {**record.measurement.sizes, **change}
    sizes = {name: n for name, n in sizes.items() if n is not None}
    measured = replace(record.measurement, sizes=sizes)
    found = [f.code for f in judge(replace(record, measurement=measured))]
    assert found == ["sizes"]


def test_facts_that_are_faster_than_possible_are_refused():
    """No kernel reads the entries in no time."""
    record = mttkrp_record("factorized", profile=(40, 1200, 24_000))
    fast = replace(record.measurement, samples_s=(1.1e-8,) * 5)
    found = [f.code for f in judge(replace(record, measurement=fast))]
    assert found == ["faster-than-possible"]
