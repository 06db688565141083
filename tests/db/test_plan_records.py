"""What plans moved and took goes wherever facts go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from feinsum.db.exchange.merging import merge
from feinsum.errors import ImplausibleError
from feinsum.records import InMemoryStore, RetractionQuery, check_plausible, judge
from feinsum.records.signature import explain_untrusted, format_public_key, sign
from tests.db.factories import make_plan, make_plan_record, make_record

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

RECORDS = [make_plan_record(n) for n in range(3)] + [
    make_plan_record(plan=make_plan(5))
]
FAKE = replace(RECORDS[0], counted=1)


def held(store):
    return list(store.documents("plan"))


def test_plans_are_retracted_like_facts(make_any_sql_store):
    """By the digits that their ids begin with, by their key, and by time; not by a
    transform, which they have not.
    """
    store = make_any_sql_store()
    store.add_all([*RECORDS, make_record()])
    by_transform = RetractionQuery(transform="rowwise")
    assert store.retract(by_transform).plans == ()
    of_one = RetractionQuery(workload=RECORDS[0].workload)
    assert {one.id for one in store.retract(of_one).plans} == {
        one.id for one in RECORDS[:3]
    }
    gone = RetractionQuery(ids=(RECORDS[0].id[:12],))
    done = store.retract(gone, reason="a wrong clock", is_dry_run=False)
    assert (done.n_facts, done.unknown) == (1, ())
    assert RECORDS[0] not in held(store)
    assert store.retract(gone).n_facts == 0
    everything = RetractionQuery(since="2025-01-01")
    done = store.retract(everything, reason="a wrong clock", is_dry_run=False)
    assert (len(done.suspects), len(done.plans), done.n_facts) == (1, 3, 4)
    assert held(store) == []


def test_a_signature_covers_a_plan():
    """What it covers cannot be changed, and the signed plan is as plausible."""
    trusted = {format_public_key(KEY)}
    for record in RECORDS:
        signed = sign(record, KEY)
        assert explain_untrusted(signed, trusted) == ""
        assert not judge(signed)
        faster = replace(signed, samples_s=tuple(s / 2 for s in signed.samples_s))
        assert "is not that of" in explain_untrusted(faster, trusted)


def test_what_was_made_up_comes_into_no_database():
    """Neither by a merge nor by a file."""
    with pytest.raises(ImplausibleError, match=r"\[counts\]"):
        check_plausible(FAKE)
    source, target = InMemoryStore(), InMemoryStore()
    source.add_all([FAKE, RECORDS[1]])
    left_out = []
    assert merge(target, source, on_bad=left_out.append)["plan"] == 1
    assert held(target) == [RECORDS[1]]
    assert len(left_out) == 1
