"""Between databases, and between a database and a file: unions of documents.

A database is a set of documents identified by their content. So reading documents into
it is a set union: in any order, any number of times, with the same result::

    laptop    {r1, r2}                  merge(cluster, laptop)
    cluster   {r2, r3, retraction of r1}   -> cluster as it was: r1 is not lacking
    cluster   {r3}                         -> cluster {r1, r2, r3}
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from feinsum.db.exchange.lines import Bad, Entry
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    KINDS,
    Document,
    DocumentKind,
    Store,
    check_plausible,
    kind_of,
)

BATCH = 500
"""How many documents are stored in one transaction.

Each transaction waits for the disk once; 500 documents make that wait unimportant.
"""

logger = logging.getLogger(__name__)

T = TypeVar("T")

ORDER: tuple[DocumentKind, ...] = (
    "retraction", "record", "peaks", "plan", "trial",
)  # fmt: skip
"""The order in which kinds are stored: retractions first, so that no look-up sees a
retracted fact during a merge.
"""

OnStep = Callable[[int], None]
"""Called with the number of documents that were processed since the last call."""

OnBad = Callable[[Bad], None]

Check = Callable[[Document], None]


@dataclass(frozen=True)
class KindDifference:
    """The differences between two databases for one kind.

    Attributes:
        only_a, only_b: sorted ids that the other one lacks.
        n_both: number of documents that both have.
    """

    kind: DocumentKind
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    n_both: int

    @property
    def is_empty(self) -> bool:
        return not (self.only_a or self.only_b)


@dataclass(frozen=True)
class Imported:
    """The result of importing a file.

    Attributes:
        n_read: well-formed documents by kind.
        n_new: how many of these were new.
        n_bad: number of invalid entries.
    """

    n_read: Counter[DocumentKind]
    n_new: Counter[DocumentKind]
    n_bad: int


def _log(bad: Bad) -> None:
    logger.error("skipped a document: %s", bad)


def all_documents(store: Store, *, has_trials: bool) -> Iterator[Document]:
    """Yield the contents of a store: facts, limits, retractions, optionally trials.

    Retracted documents are omitted.
    """
    kinds = [kind for kind in ORDER if kind != "trial" or has_trials]
    return chain.from_iterable(store.documents(kind) for kind in kinds)


def batches(items: Iterable[T], size: int = BATCH) -> Iterator[list[T]]:
    """Yield the items in lists of the given size; the last one may be shorter.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def compare(a: Store, b: Store) -> tuple[KindDifference, ...]:
    """Find the documents that only one of two stores has, by kind.

    Complexity: the ids of one kind are in memory.
    """
    return tuple(_difference(kind, a, b) for kind in KINDS)


def merge(
    target: Store,
    source: Store,
    on_step: OnStep = lambda _n: None,
    *,
    on_bad: OnBad = _log,
    check: Check = check_plausible,
    has_retractions: bool = True,
) -> Counter[DocumentKind]:
    """Add to a store what it lacks of another one; returns counts of new documents.

    Nothing is changed or removed. Merging is the union of plausible documents:
    commutative, associative, idempotent; what either store retracts is in no answer of
    the result. What was added before an interruption stays. Damaged documents are
    logged and skipped.

    Args:
        on_bad: called with what is refused; by default it is logged.
        check: a document for which this raises an InvalidRecordError is refused.
        has_retractions: whether to accept the retractions of the source.

    Raises:
        StoreUnavailableError: if a store cannot be read or written.
    """
    n_new: Counter[DocumentKind] = Counter()
    for kind in ORDER:
        if kind == "retraction" and not has_retractions:
            continue
        # Ids are compared first, so that only missing documents are read and sent.
        missing = target.lacking(kind, frozenset(source.ids(kind)))
        entries = ((kind, document) for document in source.documents(kind, missing))
        n_new.update(
            import_entries(target, entries, on_bad, on_step, check=check).n_new
        )
    return n_new


def import_entries(
    store: Store,
    entries: Iterable[Entry],
    on_bad: OnBad,
    on_step: OnStep = lambda _n: None,
    *,
    check: Check = check_plausible,
) -> Imported:
    """Import the documents of a file.

    Args:
        on_bad: called with an invalid entry once everything before it is stored; if it
            raises, the import ends.
        on_step: called after each batch.
        check: a document for which this raises an InvalidRecordError is invalid.
    """
    result = Imported(Counter(), Counter(), 0)
    n_bad = 0
    for batch in batches(_checked(entry, check) for entry in entries):
        for bad in _import(store, batch, result):
            n_bad += 1
            on_bad(bad)
        on_step(len(batch))
    return Imported(result.n_read, result.n_new, n_bad)


def _checked(entry: Entry, check: Check) -> Entry:
    """Return the entry, or why its document is refused."""
    if isinstance(entry, Bad):
        return entry
    position, document = entry
    try:
        check(document)
    except InvalidRecordError as error:
        return Bad(position, error)
    return entry


def _import(store: Store, entries: Sequence[Entry], result: Imported) -> Iterator[Bad]:
    """Store and count valid documents, in order; yield the invalid entries."""
    waiting: list[tuple[str, Document]] = []
    for entry in entries:
        if isinstance(entry, Bad):
            yield from _store(store, waiting, result)
            waiting.clear()
            yield entry
        else:
            waiting.append(entry)
    yield from _store(store, waiting, result)


def _store(
    store: Store, entries: Sequence[tuple[str, Document]], result: Imported
) -> Iterator[Bad]:
    """Store the documents of all entries or, if one is refused, one by one."""
    try:
        n_new = _add(store, [document for _, document in entries])
    except InvalidRecordError as error:
        # All or none were stored: find the bad one by storing them one by one.
        if len(entries) == 1:
            yield Bad(entries[0][0], error)
            return
        for entry in entries:
            yield from _store(store, [entry], result)
        return
    result.n_new.update(n_new)
    result.n_read.update(kind_of(document) for _, document in entries)


def _add(store: Store, documents: Sequence[Document]) -> Counter[DocumentKind]:
    n_new: Counter[DocumentKind] = Counter()
    for kind in ORDER:
        alike = [document for document in documents if kind_of(document) == kind]
        n_new[kind] += store.add_all(alike) if alike else 0
    return n_new


def _difference(kind: DocumentKind, a: Store, b: Store) -> KindDifference:
    ids_a, ids_b = set(a.ids(kind)), set(b.ids(kind))
    only_a, only_b = sorted(ids_a - ids_b), sorted(ids_b - ids_a)
    return KindDifference(kind, tuple(only_a), tuple(only_b), len(ids_a & ids_b))
