"""Unions of documents: of two databases, or of a database and a file.

A database is a set of documents identified by their content. So reading documents into
it is a set union: in any order, any number of times, with the same result::

    laptop    {r1, r2}                  merge(cluster, laptop)
    cluster   {r2, r3, retraction of r1}   -> cluster as it was: r1 is not lacking
    cluster   {r3}                         -> cluster {r1, r2, r3}
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from feinsum.db.exchange.files import Bad, Entry, write_file
from feinsum.db.sql.rows import split_into_batches
from feinsum.db.sql.schema import copy_database
from feinsum.db.sql.store import SqlStore
from feinsum.errors import InvalidRecordError, StoreUnavailableError
from feinsum.records import (
    KINDS,
    Document,
    DocumentKind,
    Store,
    check_plausible,
    get_kind,
)

BATCH = 500
"""How many documents are stored in one transaction.

Each transaction waits for the disk once; 500 documents make that wait unimportant.
"""

logger = logging.getLogger(__name__)

ORDER: tuple[DocumentKind, ...] = ("retraction", "record", "peaks", "plan", "trial")
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


@dataclass
class Imported:
    """The result of importing a file.

    Attributes:
        n_read: well-formed documents by kind.
        n_new: how many of these were new.
        n_bad: number of invalid entries.
    """

    n_read: Counter[DocumentKind] = field(default_factory=Counter)
    n_new: Counter[DocumentKind] = field(
        default_factory=lambda: Counter(dict.fromkeys(ORDER, 0))
    )
    n_bad: int = 0


def _log(bad: Bad) -> None:
    logger.error("skipped a document: %s", bad)


def list_documents(store: Store, *, has_trials: bool) -> Iterator[Document]:
    """Yield the contents of a store: facts, limits, retractions, optionally trials.

    Retracted documents are omitted.
    """
    kinds = [kind for kind in ORDER if kind != "trial" or has_trials]
    return chain.from_iterable(store.documents(kind) for kind in kinds)


def compare(a: Store, b: Store) -> tuple[KindDifference, ...]:
    """Find the documents that only one of two stores has, by kind.

    Complexity: the ids of one kind are in memory.
    """
    differences = []
    for kind in KINDS:
        ids_a, ids_b = set(a.ids(kind)), set(b.ids(kind))
        only_a, only_b = sorted(ids_a - ids_b), sorted(ids_b - ids_a)
        n_both = len(ids_a & ids_b)
        differences.append(KindDifference(kind, tuple(only_a), tuple(only_b), n_both))
    return tuple(differences)


def merge(
    target: Store,
    source: Store,
    on_step: OnStep = lambda _n: None,
    *,
    on_bad: OnBad = _log,
    check: Check = check_plausible,
    has_retractions: bool = True,
) -> Counter[DocumentKind]:
    """Add the documents that a store lacks from another; return counts of new ones.

    Nothing is changed or removed. Merging is the union of plausible documents:
    commutative, associative, idempotent; the result hides what either store retracts.
    What was added before an interruption stays. Damaged documents are logged and
    skipped.

    Args:
        target: store that receives the documents.
        source: store that is read.
        on_step: called after each batch, with the number of documents in it.
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
        missing = target.find_lacking(kind, frozenset(source.ids(kind)))
        entries = ((kind, document) for document in source.documents(kind, missing))
        imported = import_entries(target, entries, on_bad, on_step, check=check)
        n_new.update(imported.n_new)
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
        store: store that receives the documents.
        entries: entries of the file, in order.
        on_bad: called with an invalid entry once everything before it is stored; if it
            raises, the import ends.
        on_step: called after each batch.
        check: a document for which this raises an InvalidRecordError is invalid.
    """
    result = Imported()
    for batch in split_into_batches(
        (_check_entry(entry, check) for entry in entries), BATCH
    ):
        valid: list[tuple[str, Document]] = []
        for entry in batch:
            if not isinstance(entry, Bad):
                valid.append(entry)
                continue
            _store(store, valid, result, on_bad)
            valid = []
            result.n_bad += 1
            on_bad(entry)
        _store(store, valid, result, on_bad)
        on_step(len(batch))
    return result


def _check_entry(entry: Entry, check: Check) -> Entry:
    """Return the entry, or why its document is refused."""
    if isinstance(entry, Bad):
        return entry
    try:
        check(entry[1])
    except InvalidRecordError as error:
        return Bad(entry[0], error)
    return entry


def _store(
    store: Store, entries: list[tuple[str, Document]], result: Imported, on_bad: OnBad
) -> None:
    """Store and count documents; if one is refused, store each alone."""
    try:
        for kind in ORDER:
            if alike := [d for _, d in entries if get_kind(d) == kind]:
                result.n_new[kind] += store.add_all(alike)
    except InvalidRecordError as error:
        if len(entries) == 1:
            result.n_bad += 1
            on_bad(Bad(entries[0][0], error))
            return
        # kinds that were stored before the error are not new a second time, so counts
        # stay right
        for entry in entries:
            _store(store, [entry], result, on_bad)
        return
    result.n_read.update(get_kind(document) for _, document in entries)


def back_up_store(store: SqlStore, path: Path) -> Path:
    """Write a copy of a database to a new file, which gets its name when complete.

    A file is copied by SQLite's online backup, a consistent snapshot. A server is
    written as JSON Lines, trials included: all documents present at the start, and
    perhaps some that arrived during the copy.

    Returns:
        The path of the copy; for a server, ``.jsonl`` is appended if missing.

    Raises:
        StoreUnavailableError: if the file exists or cannot be written.
    """
    # The suffix says how to restore it: a server is written as text.
    if store.path is None and path.suffix != ".jsonl":
        path = path.with_name(f"{path.name}.jsonl")
    # in the same folder, because a rename is atomic only within a file system
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if store.path is None:
            write_file(list_documents(store, has_trials=True), path)
        else:
            copy_database(store.path, temporary)
            temporary.rename(path)  # a reader never sees half a copy
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(
            f"cannot write a backup to {path}: "
            f"{getattr(error, 'strerror', None) or error}; give the path of a new file "
            "in a writable folder"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return path
