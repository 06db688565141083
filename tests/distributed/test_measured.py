"""Of plans of few elements the one that was fastest on such a fleet."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

import feinsum
from benchmarks.papers.schedules import named_plan
from feinsum.cli import app
from feinsum.db import open_store
from feinsum.distributed import assemble, best_plans, plan_program
from feinsum.distributed.choosing import (
    fastest_measured,
    identity,
    measured_s,
    prefer_measured,
)
from feinsum.distributed.engines import fleet_here
from feinsum.records import Host, InMemoryStore, untrusted
from feinsum.records.signature import public_key_of, sign
from tests.db.factories import make_fleet, make_plan_record
from tests.distributed.cases import KERNELS, einsum_of
from tests.distributed.test_facts import softmax

PRODUCT = einsum_of("ij,jk->ik", every=600)


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
    """Among them the one of the fewest elements, which else stays."""
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    assert chosen() == FIRST
    assert chosen(slow) == FIRST
    assert chosen(fast) == FIRST
    assert chosen(slow, fast) == OTHERS[1]
    assert chosen(timed(FIRST, 5e-3), fast) == FIRST
    assert chosen(slow, fast, max_bytes=1) == FIRST


def test_the_seconds_of_untrusted_senders_count_for_nothing():
    """Nobody can time a fleet to check them."""
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    assert chosen(slow, fast) == OTHERS[1]
    assert chosen(slow, untrusted(fast)) == FIRST
    assert chosen(untrusted(slow), fast) == FIRST


def test_several_facts_of_one_plan_have_their_median():
    """One odd run decides nothing."""
    records = [timed(FIRST, s) for s in (1e-2, 2e-2, 9e-2)]
    assert measured_s(records, FLEET) == {identity(FIRST): 2e-2}


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
    """Nor do those of more ranks than cores, even on the same fleet."""
    records = [timed(FIRST, 2e-2, fleet), timed(OTHERS[1], 1e-2, fleet)]
    assert chosen(*records) == FIRST
    assert chosen(*records, fleet=fleet) == (OTHERS[1] if fleet.is_timed else FIRST)


def test_what_was_made_up_does_not_count():
    """A fact that came around the checks is judged again."""
    fake = replace(timed(OTHERS[1], 1e-2), counted=1)
    shared = replace(timed(OTHERS[1], 1e-2), fleet=SHARED)
    assert chosen(timed(FIRST, 2e-2), fake) == FIRST
    assert measured_s([fake, shared], FLEET) == measured_s([shared], SHARED) == {}


def test_only_trusted_signers_count(monkeypatch):
    """Where there are any; a fact that somebody else signed is as good as none."""
    ours, theirs = (
        Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2)
    )
    slow, fast = timed(FIRST, 2e-2), timed(OTHERS[1], 1e-2)
    monkeypatch.setenv("FEINSUM_TRUSTED_SIGNERS", public_key_of(ours))
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
    named_plan(name, PRODUCT, processes=4) for name in ("cannon", "summa", "pumma")
]


@pytest.mark.parametrize("plan", [FIRST, *OTHERS, *NAMED], ids=lambda one: one.id[:6])
def test_names_do_not_matter(plan):
    """Of indices, operands and plans, nor the order of operands; all else does."""
    other = renamed(plan)
    assert identity(other) == identity(plan)
    assert other.counts.moved == plan.counts.moved
    assert other.key == plan.key


def test_different_plans_are_different():
    """By their machine, cuts, loops, starts or results."""
    plans = [FIRST, *OTHERS, *NAMED]
    for several in (plans, best_plans(KERNELS["paper"], processes=8)):
        different = {unnamed(one).id for one in several}
        assert len({identity(one) for one in several}) == len(different) > 3


def test_a_plan_that_is_alone_is_no_better():
    """What was not timed may be as fast."""
    assert fastest_measured([FIRST, *OTHERS], {identity(OTHERS[0]): 1e-9}) == FIRST


def test_plans_of_programs_are_no_candidates():
    """Though a program of one product has the key of its einsum."""
    made = plan_program(softmax(), processes=8)
    record = make_plan_record(plan=made, fleet=FLEET)
    assert measured_s([record], FLEET) == {}


def test_the_planner_asks_a_database(tmp_path):
    """By ``database=`` and by the command, for ranks on this machine."""
    database, here = tmp_path / "facts.sqlite", fleet_here(2)
    e = einsum_of("ij,jk->ik", every=64)
    first, *others = best_plans(e, processes=2)
    other = next(one for one in others if identity(one) != identity(first))
    records = [timed(first, 2e-3, here), timed(other, 1e-3, here)]
    with open_store(database) as store:
        store.add_all(records)
    expected = other if here.is_timed else first
    assert feinsum.plan(e, processes=2) == first
    assert feinsum.plan(e, processes=2, database=database) == expected
    words = ["plan", "ij,jk->ik", "--sizes", "i=64,j=64,k=64", "--processes", "2"]
    said = CliRunner().invoke(app, [*words, "--database", str(database), "--json"])
    assert json.loads(said.stdout)["id"] == expected.id
