"""Choosing among plans: by prices, by contraction paths, and by measured times."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

import feinsum
from benchmarks.papers.schedules import make_named_plan
from feinsum.cli import app
from feinsum.db import open_store
from feinsum.distributed import (
    assemble,
    best_plans,
    cheapest,
    groups_of,
    plan,
    plan_program,
    price,
)
from feinsum.distributed.choosing import (
    collect_measured_s,
    compute_identity,
    prefer_measured,
)
from feinsum.distributed.fleets import describe_fleet_here
from feinsum.distributed.groups import find_default_path
from feinsum.distributed.planner import list_short_paths
from feinsum.errors import InvalidRecordError, PlanError
from feinsum.records import Host, InMemoryStore, Links, mark_untrusted
from feinsum.records.signature import format_public_key, sign
from tests.db.factories import make_fleet, make_plan_record
from tests.distributed.cases import KERNELS, einsum_of
from tests.distributed.test_facts import softmax

PRODUCT = einsum_of("ij,jk->ik", every=600)


@pytest.mark.parametrize("name", ["1mm", "paper", "mttkrp-3-0"])
def test_the_best_plans_are_different_and_in_order(name):
    """The planner's choice comes first; all are different and in order."""
    found = best_plans(KERNELS[name], processes=8, most=3)
    assert found[0] == plan(KERNELS[name], processes=8)
    assert len({one.id for one in found}) == len(found) == 3
    moved = [one.counts.moved for one in found]
    assert moved == sorted(moved)
    # a named schedule that the planner chose is not listed again
    found = best_plans(KERNELS[name], processes=8, most=20)
    assert len({replace(one, name="").id for one in found}) == len(found)


def test_a_price_is_messages_elements_and_leaves():
    """A price is the sum over messages, elements and leaves of the busiest process."""
    made = plan(PRODUCT, processes=8)
    counts = made.counts
    found = price(made, Links(1.0, 0.5), lambda leaf: 100.0)
    assert found == counts.most_messages + 0.5 * counts.most_received + 100
    assert price(made, Links(0, 0), lambda leaf: 0.0) == 0


def test_links_decide_between_plans():
    """Expensive elements favor few elements, expensive leaves fast leaves."""
    plans = best_plans(PRODUCT, processes=8, most=20)
    dear = Links(0.0, 1.0)
    least = min(plans, key=lambda one: one.counts.most_received)
    assert cheapest(plans, dear, lambda leaf: 1.0).counts.most_received == (
        least.counts.most_received
    )
    usual = plans[0].leaves[0].key
    chosen = next(k for one in plans if (k := one.leaves[0].key) != usual)
    fast = cheapest(plans, Links(0, 0), lambda leaf: float(leaf.key != chosen))
    assert fast.leaves[0].key == chosen
    asked = []
    cheapest(plans, dear, lambda leaf: asked.append(leaf.key) or 1.0)
    assert len(set(asked)) == len(asked)


def test_bad_prices_are_refused():
    """Negative times and an empty choice raise errors."""
    for times in ((-1.0, 0.0), (0.0, float("nan"))):
        with pytest.raises(InvalidRecordError, match="numbers from 0"):
            Links(*times)
    with pytest.raises(PlanError) as caught:
        cheapest([], Links(0, 0), lambda leaf: 0.0)
    assert caught.value.rules == ("price",)


def test_paths_are_different_and_of_few_operations():
    """The default path comes first, and no two paths have the same groups."""
    einsum = einsum_of("ijk,ja,ka,al->il", every=10)
    extents = dict(einsum.extents)
    paths = list_short_paths(einsum, extents)
    assert paths[0] == find_default_path(einsum, extents)
    assert 1 < len(paths) <= 4
    texts = {str(groups_of(einsum, path, extents)) for path in paths}
    assert len(texts) == len(paths)
    many = einsum_of("ab,bc,cd,de,ef,fg->ag", every=10)
    assert len(list_short_paths(many, dict(many.extents))) == 1


def test_another_path_is_taken_if_less_is_moved():
    """A path that moves less replaces the default one, but not a given one."""
    einsum = einsum_of("ijk,ja,ka,al->il", a=8, i=32, j=32, k=128, l=16)
    usual = find_default_path(einsum, dict(einsum.extents))
    given = plan(einsum, processes=8, path=usual)
    free = plan(einsum, processes=8)
    assert given.path == usual != free.path
    assert free.counts.moved < 0.6 * given.counts.moved


def unnamed(plan):
    return replace(plan, name="")


FIRST, *OTHERS = dict.fromkeys(map(unnamed, best_plans(PRODUCT, processes=8)))
FLEET = make_fleet(8)


def timed(plan, seconds, fleet=FLEET):
    record = make_plan_record(plan=plan, fleet=fleet)
    samples = (seconds,) * 3 if fleet.is_timed else ()
    return replace(record, samples_s=samples)


def chosen(*records, fleet=FLEET, **options):
    store = InMemoryStore()
    store.add_all(records)
    return unnamed(prefer_measured(FIRST, store, fleet, **options))


def test_the_fastest_of_those_that_were_timed_is_taken():
    """The fastest timed plan wins if the one with the fewest elements was timed."""
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    assert chosen() == FIRST
    assert chosen(slow) == FIRST
    assert chosen(fast) == FIRST
    assert chosen(slow, fast) == OTHERS[1]
    assert chosen(timed(FIRST, 5e-3), fast) == FIRST
    assert chosen(slow, fast, max_bytes=1) == FIRST


def test_the_seconds_of_untrusted_senders_count_for_nothing():
    """Times of untrusted senders do not count, because nobody can check them."""
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    assert chosen(slow, fast) == OTHERS[1]
    assert chosen(slow, mark_untrusted(fast)) == FIRST
    assert chosen(mark_untrusted(slow), fast) == FIRST


def test_several_facts_of_one_plan_have_their_median():
    """Several facts of a plan count by their median."""
    records = [timed(FIRST, s) for s in (1e-2, 2e-2, 9e-2)]
    assert collect_measured_s(records, FLEET) == {compute_identity(FIRST): 2e-2}


SHARED = replace(FLEET, hosts=(Host(8, 4),))
UNLIKE = {
    "shared cores": SHARED,
    "in turns": make_fleet(8, "local"),
    "dask": make_fleet(8, "dask"),
    "more cores": replace(FLEET, hosts=(Host(8, 16),)),
    "two hosts": replace(FLEET, hosts=(Host(4, 4), Host(4, 4))),
    "another processor": replace(FLEET, device=replace(FLEET.device, name="other")),
}


@pytest.mark.parametrize("fleet", UNLIKE.values(), ids=UNLIKE)
def test_facts_of_other_fleets_do_not_count(fleet):
    """Facts of other fleets, and of ranks that share cores, do not count."""
    records = [timed(FIRST, 2e-2, fleet), timed(OTHERS[1], 1e-2, fleet)]
    assert chosen(*records) == FIRST
    assert chosen(*records, fleet=fleet) == (OTHERS[1] if fleet.is_timed else FIRST)


def test_implausible_facts_do_not_count():
    """Implausible facts do not count, however they got into the store."""
    fake = replace(timed(OTHERS[1], 1e-2), counted=1)
    shared = replace(timed(OTHERS[1], 1e-2), fleet=SHARED)
    assert chosen(timed(FIRST, 2e-2), fake) == FIRST
    assert (
        collect_measured_s([fake, shared], FLEET)
        == collect_measured_s([shared], SHARED)
        == {}
    )


def test_only_trusted_signers_count(monkeypatch):
    """If trusted signers are configured, facts of others do not count."""
    ours, theirs = (
        Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2)
    )
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", format_public_key(ours))
    assert chosen(slow, fast) == FIRST
    assert chosen(sign(slow, ours), sign(fast, theirs)) == FIRST
    assert chosen(sign(slow, ours), sign(fast, ours)) == OTHERS[1]


def renamed(plan):
    """The same plan of an einsum with other names and its operands in turn."""
    names = dict(zip("ijk", "zxy", strict=True))
    B, A = feinsum.array("first", (600, 600)), feinsum.array("second", (600, 600))
    schedules = [
        replace(
            one,
            axes=[i and names[i] for i in one.axes],
            loop=one.loop and replace(one.loop, index=names[one.loop.index]),
        )
        for one in plan.schedules
    ]
    return assemble(
        feinsum.einsum("xy,zx->zy", B, A),
        {},
        plan.processes,
        ((0, 1),),
        schedules,
        starts={"first": plan.starts["B"], "second": plan.starts["A"]},
        name="by hand",
    )


NAMED = [
    make_named_plan(name, PRODUCT, processes=4) for name in ("cannon", "summa", "pumma")
]


def test_names_do_not_matter():
    """The identity of a plan does not depend on names or the order of operands."""
    for made in (FIRST, *OTHERS, *NAMED):
        other = renamed(made)
        assert compute_identity(other) == compute_identity(made)
        assert other.counts.moved == made.counts.moved
        assert other.key == made.key


def test_different_plans_are_different():
    """Other machines, cuts, loops, starts or results are other plans."""
    plans = [FIRST, *OTHERS, *NAMED]
    for several in (plans, best_plans(KERNELS["paper"], processes=8)):
        different = {unnamed(one).id for one in several}
        assert len({compute_identity(one) for one in several}) == len(different) > 3


def test_plans_of_programs_are_no_candidates():
    """Plans of programs are no candidates, even with the key of an einsum."""
    made = plan_program(softmax(), processes=8)
    record = make_plan_record(plan=made, fleet=FLEET)
    assert collect_measured_s([record], FLEET) == {}


def test_the_planner_reads_a_database(tmp_path):
    """``database=`` and the command choose by facts for ranks on this machine."""
    database, here = tmp_path / "facts.sqlite", describe_fleet_here(2)
    e = einsum_of("ij,jk->ik", every=64)
    first, *others = best_plans(e, processes=2)
    other = next(
        one for one in others if compute_identity(one) != compute_identity(first)
    )
    records = [timed(first, 2e-3, here), timed(other, 1e-3, here)]
    with open_store(database) as store:
        store.add_all(records)
    expected = other if here.is_timed else first
    assert feinsum.plan(e, processes=2) == first
    assert feinsum.plan(e, processes=2, database=database) == expected
    words = ["plan", "ij,jk->ik", "--sizes", "i=64,j=64,k=64", "--processes", "2"]
    said = CliRunner().invoke(app, [*words, "--database", str(database), "--json"])
    assert json.loads(said.stdout)["id"] == expected.id
