"""Facts for the tests of rekeying, as of today and as of older installations."""

from __future__ import annotations

from dataclasses import replace

from feinsum.canonical import canonicalize
from feinsum.db.exchange import RekeyPlan, plan_rekey, rekey
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from feinsum.records import Store, TuningRecord
from tests.db.factories import make_record
from tests.older import respelled, under_older_key

__all__ = [
    "EINSUMS",
    "OLDEST",
    "fact",
    "facts",
    "older_facts",
    "older_facts_of",
    "rekey_all",
]

OLDEST = "fe0-nauty2.6"

J, D = array("J", (3, 3, "E")), array("D", (3, 8, 8))
EINSUMS = (
    einsum("ij,j->i", array("A", ("N", 4)), array("x", 4)),
    einsum("ik,kj->ji", array("A", ("M", 20)), array("B", (20, 24))),
    batched_einsum(
        "xre,rij,ej->xei",
        [[J, D, array("u", ("E", 8))], [J, D, array("v", ("E", 8))]],
    ),
)


def fact(e: BatchedEinsum, number: int = 0) -> TuningRecord:
    """A fact under the key of today; different numbers are different facts."""
    form = canonicalize(e)
    return replace(make_record(number, workload=form.key), workload_text=form.text)


def facts(*numbers: int) -> list[TuningRecord]:
    return [fact(e, number) for e in EINSUMS for number in numbers]


def older_facts_of(e: BatchedEinsum) -> list[TuningRecord]:
    """Three facts: two that are spelled as today, one that is not."""
    other = respelled(fact(e, 2))
    assert other.workload_text != canonicalize(e).text
    return [*(under_older_key(fact(e, number)) for number in (0, 1)), other]


def older_facts() -> list[TuningRecord]:
    return [record for e in EINSUMS for record in older_facts_of(e)]


def rekey_all(store: Store) -> RekeyPlan:
    """Rekey a store; the plan that was followed."""
    plan = plan_rekey(store)
    assert rekey(store, plan).total() == len(plan.missing)
    return plan
