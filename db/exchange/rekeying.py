"""Rekeying: adding facts and trials of older keys again under current keys.

A key contains the versions of the canonical form and of the canonicalizer. When one of
them changes, an older fact is no longer found, though it is as true as before. It is
added again under the current key of its own text. The text is unchanged, because the
recipe refers to its names. The same applies to trials. After a new canonical form::

    before   fe1-nauty2.8-0f7c...  r1
    after    fe1-nauty2.8-0f7c...  r1
             fe2-nauty2.8-93aa...  r1 again, provenance {"rekeyed_from": id of r1}

Nothing is deleted or changed, and what is added depends on the fact or trial alone. So
rekeying is idempotent and commutes with merging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal, TypeAlias, cast

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, canonicalize
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.records import Store, Trial, TuningRecord, kind_of

REKEYED_FROM = "rekeyed_from"
"""The topic of the provenance that has the id of the record as it was measured."""

PRESENT_PREFIX = f"{FORM_VERSION}-{CANONICALIZER}"
"""Prefix of current keys."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number done and the total."""

Kind: TypeAlias = Literal["record", "trial"]


@dataclass(frozen=True, slots=True)
class Move:
    """A record or trial that belongs under another key.

    Attributes:
        old, new: its key, and the current key of its text.
        is_there: whether it is already stored under the new key, or another move adds
            it.
    """

    kind: Kind
    id: str
    old: WorkloadKey
    new: WorkloadKey
    is_there: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record or trial whose text gets no key, and why; it is left alone."""

    kind: Kind
    id: str
    old: WorkloadKey
    problem: FeinsumError


@dataclass(frozen=True)
class PrefixCount:
    """Counts of a plan for one kind and one key prefix.

    Attributes:
        old, new: key prefixes: version of the form, and canonicalizer.
        n: total number; the sum of the last three.
        n_workloads: number of distinct keys.
        n_there: number already stored under the new key.
        n_missing: number to add.
        n_unreadable: number left alone, since their text gets no key.
    """

    kind: Kind
    old: str
    new: str
    n: int
    n_workloads: int
    n_there: int
    n_missing: int
    n_unreadable: int


@dataclass(frozen=True)
class RekeyPlan:
    """The changes of rekeying a store.

    Attributes:
        n_records, n_trials: numbers examined; those in neither ``moves`` nor
            ``unreadable`` have the right key.
    """

    n_records: int
    n_trials: int
    moves: tuple[Move, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def missing(self) -> tuple[Move, ...]:
        """The moves that add a record or a trial."""
        return tuple(move for move in self.moves if not move.is_there)

    def count(self) -> tuple[PrefixCount, ...]:
        """Count the documents of the plan, by kind and prefix of the old keys."""
        entries: dict[tuple[Kind, str], list[tuple[WorkloadKey, str]]] = {}
        for move in self.moves:
            state = "there" if move.is_there else "missing"
            entries.setdefault(_prefix(move), []).append((move.old, state))
        for entry in self.unreadable:
            entries.setdefault(_prefix(entry), []).append((entry.old, "unreadable"))
        return tuple(_count(*prefix, entries[prefix]) for prefix in sorted(entries))


def rekeyed(record: TuningRecord, key: WorkloadKey) -> TuningRecord:
    """Return the same fact under another key.

    Its provenance names the measured record, whatever keys it had in between; under the
    key of that record, it is that record again. So for all keys,
    ``rekeyed(rekeyed(r, k), l) == rekeyed(r, l)`` and ``rekeyed(r, r.workload) == r``.
    A trial has no provenance: only its key changes.
    """
    origin = record.provenance.get(REKEYED_FROM, record.id)
    topics = {k: v for k, v in record.provenance.items() if k != REKEYED_FROM}
    measured = replace(record, workload=key, provenance=topics)
    if measured.id == origin:
        return measured
    return replace(measured, provenance={**topics, REKEYED_FROM: origin})


def plan_rekey(
    store: Store, on_progress: OnProgress = lambda _n, _total: None
) -> RekeyPlan:
    """Find what a store has under outdated keys; writes nothing.

    Args:
        on_progress: called after each record, and after the trials of each workload.

    Complexity: every distinct text is canonicalized once.
    """
    # Many facts share a text, and canonicalizing is slow.
    key_of = cache(_present_key)
    ids_under = cache(lambda kind, key: _ids_under(store, kind, key))
    moves, unreadable = [], []
    n_seen: Counter[Kind] = Counter()
    n_total = len(store) + len(store.tried())
    for n_done, step in enumerate(_steps(store), start=1):
        for document in step:
            kind = _kind(document)
            n_seen[kind] += 1
            key = key_of(document.workload_text)
            if isinstance(key, FeinsumError):
                entry = Unreadable(kind, document.id, document.workload, key)
                unreadable.append(entry)
            elif key != document.workload:
                moves.append(_move(document, key, ids_under(kind, key)))
        on_progress(n_done, n_total)
    return RekeyPlan(n_seen["record"], n_seen["trial"], tuple(moves), tuple(unreadable))


def rekey(
    store: Store,
    plan: RekeyPlan,
    on_progress: OnProgress = lambda _n, _total: None,
) -> Counter[Kind]:
    """Add what a plan found missing; returns counts of new documents.

    Each document is added separately: what was added before an interruption stays, and
    the next plan has the rest.

    Args:
        on_progress: called after each record and each trial.

    Raises:
        StoreUnavailableError: if the store cannot be written.
    """
    n_new: Counter[Kind] = Counter({"record": 0, "trial": 0})
    # A plan has the trials of one workload together, and there may be many: those of
    # one workload are in memory at a time.
    trials_under = lru_cache(1)(lambda key: {t.id: t for t in store.trials(key)})
    missing = plan.missing
    for n_done, move in enumerate(missing, start=1):
        if move.kind == "trial":
            trial = trials_under(move.old)[move.id]
            n_new["trial"] += store.add(replace(trial, workload=move.new))
        else:
            again = rekeyed(store.get(move.id), move.new)
            n_new["record"] += store.add_rekeyed(again, move.id)
        on_progress(n_done, len(missing))
    return n_new


def _steps(store: Store) -> Iterator[Iterable[TuningRecord | Trial]]:
    """Yield all records one by one, then the trials of each workload together."""
    for record in store.records():
        yield (record,)
    for key in store.tried():
        yield store.trials(key)


def _ids_under(store: Store, kind: Kind, key: WorkloadKey) -> set[str]:
    documents: Iterable[TuningRecord | Trial]
    documents = store.query(key) if kind == "record" else store.trials(key)
    return {document.id for document in documents}


def _kind(document: TuningRecord | Trial) -> Kind:
    return cast(Kind, kind_of(document))


def _present_key(text: str) -> WorkloadKey | FeinsumError:
    try:
        return canonicalize(from_text(text)).key
    except FeinsumError as error:
        return error


def _move(document: TuningRecord | Trial, key: WorkloadKey, ids: set[str]) -> Move:
    """Return the move to a key.

    Args:
        ids: the ids of this kind that are, or will be, stored under the key; the new id
            is added, since two documents may become one.
    """
    if isinstance(document, Trial):
        new_id = replace(document, workload=key).id
    else:
        new_id = rekeyed(document, key).id
    is_stored = new_id in ids
    ids.add(new_id)
    return Move(_kind(document), document.id, document.workload, key, is_stored)


def _count(
    kind: Kind, old: str, entries: Sequence[tuple[WorkloadKey, str]]
) -> PrefixCount:
    """Count the keys and states of one kind under one prefix."""
    states = Counter(state for _, state in entries)
    return PrefixCount(
        kind,
        old,
        PRESENT_PREFIX,
        n=len(entries),
        n_workloads=len({key for key, _ in entries}),
        n_there=states["there"],
        n_missing=states["missing"],
        n_unreadable=states["unreadable"],
    )


def _prefix(entry: Move | Unreadable) -> tuple[Kind, str]:
    return entry.kind, entry.old.rpartition("-")[0] or entry.old
