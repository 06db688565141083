"""Rekey: add facts and trials of older keys again under current keys.

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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from feinsum.canonical import CANONICALIZER, FORM_VERSION, WorkloadKey, canonicalize
from feinsum.db.sql.store import SqlStore
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.records import DocumentKind, Trial, TuningRecord, get_kind

REKEYED_FROM = "rekeyed_from"
"""The topic of the provenance that has the id of the record as it was measured."""

CURRENT_PREFIX = f"{FORM_VERSION}-{CANONICALIZER}-"
"""Prefix of current keys."""


@dataclass(frozen=True)
class Unreadable:
    """A workload whose facts and trials stay where they are, since it gets no key."""

    key: WorkloadKey
    problem: FeinsumError


@dataclass
class Rekeyed:
    """The result of rekeying.

    Attributes:
        n_new: how many documents were added, by kind.
    """

    n_new: Counter[DocumentKind] = field(default_factory=Counter)
    unreadable: list[Unreadable] = field(default_factory=list)


def rekey_record(record: TuningRecord, key: WorkloadKey) -> TuningRecord:
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


def rekey(store: SqlStore, on_step: Callable[[int], None] = lambda _n: None) -> Rekeyed:
    """Add again, under current keys, what a store has under outdated keys.

    Each document is added separately: what was added before an interruption stays, and
    the next call adds the rest. ``on_step`` is called with 1 after each workload.

    Raises:
        StoreUnavailableError: if the store cannot be written.

    Complexity: every distinct text under an outdated key is canonicalized once.
    """
    result = Rekeyed()
    # Facts of one workload may have several texts, of which each may get another key.
    key_of = cache(lambda text: canonicalize(from_text(text)).key)
    for old_key in sorted({*store.workloads(), *store.tried()}):
        if old_key.startswith(CURRENT_PREFIX):
            continue
        problems: dict[str, FeinsumError] = {}
        documents: list[TuningRecord | Trial] = [
            *store.query(old_key),
            *store.trials(old_key),
        ]
        for document in documents:
            try:
                key = key_of(document.workload_text)
            except FeinsumError as error:
                problems.setdefault(document.workload_text, error)
            else:
                result.n_new[get_kind(document)] += _add(store, document, key)
        result.unreadable += [Unreadable(old_key, error) for error in problems.values()]
        on_step(1)
    return result


def _add(store: SqlStore, document: TuningRecord | Trial, key: WorkloadKey) -> bool:
    if isinstance(document, Trial):
        return store.add(replace(document, workload=key))
    return store.add_rekeyed(rekey_record(document, key), document.id)
