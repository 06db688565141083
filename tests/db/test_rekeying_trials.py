"""Rekeying trials: they are found again as facts are, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from feinsum.canonical import WorkloadKey, canonicalize
from feinsum.db.exchange import plan_rekey, rekey
from feinsum.records import InMemoryStore, Trial, to_json
from tests.db.contract import MakeStore, content
from tests.db.factories import make_trial
from tests.db.rekeyable import (
    EINSUMS,
    OLDEST,
    older_facts,
    older_facts_of,
    rekey_all,
)
from tests.older import OLDER, older_key


def older_trials(number: int = 0) -> list[Trial]:
    """A trial of every older fact, under its key and in the names of its text."""
    return [
        replace(
            make_trial(number, status="trial-crashed"),
            workload=record.workload,
            workload_text=record.workload_text,
            spec=record.spec,
        )
        for record in older_facts()
    ]


def with_trials(make_store: MakeStore, trials: Iterable[Trial]) -> Any:
    store: Any = make_store()
    for trial in trials:
        store.add(trial)
    return store


def trials_in(store: Any) -> list[str]:
    return sorted(t.id for key in store.tried() for t in store.trials(key))


def test_trials_are_found_under_the_key_of_today(make_store: MakeStore) -> None:
    """Each with its own text and recipe; the older ones stay, to the byte."""
    old = older_trials()
    store = with_trials(make_store, old)
    plan = rekey_all(store)
    assert (plan.n_records, plan.n_trials) == (0, len(old))
    for e in EINSUMS:
        key = canonicalize(e).key
        texts = {r.workload_text for r in older_facts_of(e)}
        moved = [replace(t, workload=key) for t in old if t.workload_text in texts]
        assert {t.id for t in store.trials(key)} == {t.id for t in moved}
    for trial in old:
        assert to_json(trial) in map(to_json, store.trials(trial.workload))


def test_rekeying_trials_is_idempotent_and_apart_from_facts(
    make_store: MakeStore,
) -> None:
    """Both kinds are counted apart, and nothing is added a second time."""
    store = with_trials(make_store, older_trials())
    for record in older_facts()[:3]:
        store.add(record)
    plan = plan_rekey(store)
    assert [(c.kind, c.n) for c in plan.count()] == [("record", 3), ("trial", 9)]
    assert rekey(store, plan) == {"record": 3, "trial": 9}
    once = content(store), trials_in(store)
    assert rekey_all(store).missing == ()
    assert (content(store), trials_in(store)) == once


def test_versions_between_make_one_trial() -> None:
    """What is under two older keys is one trial under the key of today."""
    first = older_trials()[0]
    again = replace(first, workload=older_key(first.workload_text, OLDEST))
    store = with_trials(InMemoryStore, [first, again])
    assert len(rekey_all(store).missing) == 1
    assert len(trials_in(store)) == 3


def test_a_trial_that_has_no_key_is_reported_and_left() -> None:
    """The others are rekeyed."""
    bad = make_trial(workload=WorkloadKey(f"{OLDER}-unreadable"))
    store = with_trials(InMemoryStore, [bad, *older_trials()])
    (entry,) = rekey_all(store).unreadable
    assert (entry.kind, entry.id) == ("trial", bad.id)
    assert store.trials(bad.workload) == (bad,)
