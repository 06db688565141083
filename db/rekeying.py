"""Rekeying: facts under older keys are added again under the keys of today.

A key carries the versions of the canonical form and of the canonicalizer. When
one of them changes, an older fact is not found any more, though it is as true
as before. It is added again under the key that its own text gets now. The text
stays: its names are those that the recipe speaks of.

Nothing is deleted or changed, and what is added depends on the fact alone. So
rekeying twice is rekeying once, and it commutes with merging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, canonicalize
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.records import RecordStore, TuningRecord

__all__ = [
    "REKEYED_FROM",
    "Move",
    "OnProgress",
    "PrefixCount",
    "RekeyPlan",
    "Unreadable",
    "plan_rekey",
    "rekey",
    "rekeyed",
]

REKEYED_FROM = "rekeyed_from"
"""The topic of the provenance that has the id of the record as it was measured."""

PRESENT_PREFIX = f"{FORM_VERSION}-{CANONICALIZER}"
"""What the keys of today begin with."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Is told how many are done, of how many."""


@dataclass(frozen=True, slots=True)
class Move:
    """A record that belongs under another key.

    Attributes:
        old, new: the key that it has, and the key that its text gets now.
        is_there: it is stored under the new key, or another move adds it.
    """

    record_id: str
    old: WorkloadKey
    new: WorkloadKey
    is_there: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record whose text gets no key, and why; it is left as it is."""

    record_id: str
    old: WorkloadKey
    problem: FeinsumError


@dataclass(frozen=True)
class PrefixCount:
    """What a plan has for the keys that begin alike.

    Attributes:
        old, new: what the keys begin with: version of the form, canonicalizer.
        n_records: all of these; the sum of the last three.
        n_workloads: keys among them.
        n_there: stored under the new key already.
        n_missing: to be added.
        n_unreadable: left, since their text gets no key.
    """

    old: str
    new: str
    n_records: int
    n_workloads: int
    n_there: int
    n_missing: int
    n_unreadable: int


@dataclass(frozen=True)
class RekeyPlan:
    """What rekeying a store would do.

    Attributes:
        n_records: records that were looked at; those that are named neither in
            ``moves`` nor in ``unreadable`` have the right key.
    """

    n_records: int
    moves: tuple[Move, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def missing(self) -> tuple[Move, ...]:
        """The moves that add a record."""
        return tuple(move for move in self.moves if not move.is_there)

    def count(self) -> tuple[PrefixCount, ...]:
        """The numbers of the plan, by the prefix of the old keys."""
        found: dict[str, list[tuple[WorkloadKey, str]]] = {}
        for move in self.moves:
            state = "there" if move.is_there else "missing"
            found.setdefault(_prefix(move.old), []).append((move.old, state))
        for entry in self.unreadable:
            found.setdefault(_prefix(entry.old), []).append((entry.old, "unreadable"))
        return tuple(_count(old, found[old]) for old in sorted(found))


def rekeyed(record: TuningRecord, key: WorkloadKey) -> TuningRecord:
    """The same fact under another key.

    Its provenance names the record that was measured, by whatever keys it came
    here; under the key of that record it is that record again. So for all keys,
    ``rekeyed(rekeyed(r, k), l) == rekeyed(r, l)`` and
    ``rekeyed(r, r.workload) == r``.
    """
    origin = record.provenance.get(REKEYED_FROM, record.id)
    topics = {k: v for k, v in record.provenance.items() if k != REKEYED_FROM}
    measured = replace(record, workload=key, provenance=topics)
    if measured.id == origin:
        return measured
    return replace(measured, provenance={**topics, REKEYED_FROM: origin})


def plan_rekey(
    store: RecordStore, on_progress: OnProgress = lambda _done, _total: None
) -> RekeyPlan:
    """Find the records of a store that belong under another key; write nothing.

    Args:
        on_progress: is called after each record.

    Complexity: every distinct text is canonicalized once.
    """
    key_of = cache(_present_key)
    ids_under = cache(lambda key: {record.id for record in store.query(key)})
    moves, unreadable = [], []
    n_done, n_total = 0, len(store)
    for n_done, record in enumerate(store.records(), start=1):
        key = key_of(record.workload_text)
        if isinstance(key, FeinsumError):
            unreadable.append(Unreadable(record.id, record.workload, key))
        elif key != record.workload:
            moves.append(_move(record, key, ids_under(key)))
        on_progress(n_done, n_total)
    return RekeyPlan(n_done, tuple(moves), tuple(unreadable))


def rekey(
    store: RecordStore,
    plan: RekeyPlan,
    on_progress: OnProgress = lambda _done, _total: None,
) -> int:
    """Add what a plan found missing; how many records were new.

    Every record is on its own: what was added before an interruption stays, and
    the next plan has the rest.

    Args:
        on_progress: is called after each record.

    Raises:
        StoreUnavailableError: if the store cannot be written.
    """
    n_new, missing = 0, plan.missing
    for n_done, move in enumerate(missing, start=1):
        n_new += store.add(rekeyed(store.get(move.record_id), move.new))
        on_progress(n_done, len(missing))
    return n_new


def _present_key(text: str) -> WorkloadKey | FeinsumError:
    try:
        return canonicalize(from_text(text)).key
    except FeinsumError as error:
        return error


def _move(record: TuningRecord, key: WorkloadKey, ids: set[str]) -> Move:
    """The move of a record to ``key``, whose record ids are, or will be, ``ids``."""
    new_id = rekeyed(record, key).id
    is_there = new_id in ids
    ids.add(new_id)
    return Move(record.id, record.workload, key, is_there)


def _count(old: str, entries: Sequence[tuple[WorkloadKey, str]]) -> PrefixCount:
    """The numbers of the records under one prefix, given their keys and states."""
    states = Counter(state for _, state in entries)
    return PrefixCount(
        old,
        PRESENT_PREFIX,
        n_records=len(entries),
        n_workloads=len({key for key, _ in entries}),
        n_there=states["there"],
        n_missing=states["missing"],
        n_unreadable=states["unreadable"],
    )


def _prefix(key: WorkloadKey) -> str:
    return key.rpartition("-")[0] or key
