"""Find and remove facts that no look-up can prefer.

Facts compete in groups: one workload as written, one device and driver, the same sizes,
the same version of a transform; trusted facts compete only with trusted ones. Each
group keeps the facts that are tied for first place, a few after them (outdated ones
last), and those from which a kept fact was rekeyed. If a recipe was no faster than the
untransformed kernel anywhere, all its facts are kept and the others compete without
them: they stop a look-up from taking the recipe from a worse-fitting level.

So every look-up has the same answer as before, for any machine, policy and
installation. One group, with one fact kept after those that are tied::

    fact   speed-up (interval)
    r1     4.1  (3.9 - 4.3)     first, kept
    r2     4.0  (3.8 - 4.2)     tied with r1, kept
    r3     3.1  (3.0 - 3.2)     next, kept
    r4     2.9  (2.8 - 3.0)     surplus
    r5     0.9  (0.8 - 1.0)     no faster than the untransformed kernel: kept

Device limits and trials are not touched. Retracted facts can be removed on request:
their retractions stay, so that no merge restores them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from feinsum.db.exchange.files import write_file
from feinsum.db.exchange.merging import back_up_store
from feinsum.db.exchange.rekeying import REKEYED_FROM
from feinsum.db.sql.store import SqlStore
from feinsum.records import (
    Document,
    TuningRecord,
    find_outdated_records,
    find_tied_records,
)

N_NEXT = 3
"""Facts to keep after those that are tied for the best."""


@dataclass(frozen=True)
class Surplus:
    """A fact that can be removed, and why.

    Attributes:
        place: its rank in its group of ``n_group`` facts, from 1.
        speedup, best_speedup: its own speed-up, and that of the first fact.
    """

    id: str
    workload: str
    recipe: str
    place: int
    n_group: int
    speedup: float
    best_speedup: float

    @property
    def reason(self) -> str:
        return (
            f"number {self.place} of {self.n_group}: {self.speedup:.3g} times as fast "
            f"as the untransformed kernel, the best one {self.best_speedup:.3g} times"
        )


@dataclass(frozen=True)
class GarbagePlan:
    """Documents that can be removed.

    Attributes:
        n_records: number of facts examined.
        retracted: ids of retracted facts, which are in no look-up.
    """

    n_records: int
    surplus: tuple[Surplus, ...]
    retracted: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.surplus or self.retracted)


@dataclass(frozen=True)
class Collected:
    """Documents removed.

    Attributes:
        backup: path of a copy of the database as it was.
        removed: path of the removed facts, as JSON Lines.
    """

    n_removed: int
    backup: Path
    removed: Path


def find_garbage(
    workloads: Iterable[Sequence[TuningRecord]], n_next: int = N_NEXT
) -> GarbagePlan:
    """Find the facts that no look-up can prefer; nothing is written.

    Of each group, ``n_next`` facts are kept after those tied for first place.
    """
    n_records, surplus = 0, list[Surplus]()
    origins: set[object] = set()
    for records in workloads:
        n_records += len(records)
        slow = {record.recipe for record in records if not record.measurement.is_faster}
        retained = [record for record in records if record.recipe in slow]
        for group in _group_facts(r for r in records if r.recipe not in slow):
            ordered, n_tied = _order_group(group)
            n_retained = n_tied + n_next
            retained += ordered[:n_retained]
            best = ordered[0].measurement.speedup
            for rank, record in enumerate(ordered[n_retained:], n_retained + 1):
                surplus.append(
                    Surplus(
                        id=record.id,
                        workload=record.workload,
                        recipe=str(record.spec),
                        place=rank,
                        n_group=len(ordered),
                        speedup=record.measurement.speedup,
                        best_speedup=best,
                    )
                )
        origins |= {record.provenance.get(REKEYED_FROM) for record in retained}
    # A retained fact that was rekeyed names its origin, which must exist.
    removable = [entry for entry in surplus if entry.id not in origins]
    return GarbagePlan(n_records, tuple(removable))


def collect_garbage(store: SqlStore, plan: GarbagePlan, folder: Path) -> Collected:
    """Remove the facts in a plan from a database, after saving them twice.

    First a copy of the database is made, then the facts are written as JSON Lines,
    which ``feinsum db import`` can restore; only then are they removed. Both files are
    in the folder.

    Raises:
        StoreUnavailableError: if the database or the folder cannot be written.
    """
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    # Copied and written before anything is removed: after a crash nothing is lost.
    name = "database" if store.path is None else store.path.name
    backup = back_up_store(store, folder / f"{name}.backup-gc-{stamp}")
    removed = folder / f"{name}.removed-{stamp}.jsonl"
    ids, retracted = {entry.id for entry in plan.surplus}, frozenset(plan.retracted)
    written: list[str] = []

    def removable() -> Iterator[Document]:
        hidden = (fact for fact in store.retracted() if fact.id in retracted)
        for document in chain(store.documents("record", ids), hidden):
            yield document
            # The writer requests the next document once this one is in the file. Only
            # written ones are removed: facts that arrive meanwhile, and damaged ones,
            # stay.
            written.append(document.id)

    write_file(removable(), removed)
    return Collected(store.remove(written), backup, removed)


def _group_facts(records: Iterable[TuningRecord]) -> Iterable[list[TuningRecord]]:
    """Return the facts that compete with each other."""
    groups: dict[Hashable, list[TuningRecord]] = {}
    for record in records:
        environment, spec = record.environment, record.spec
        key = (
            record.is_trusted,
            record.workload_text,
            environment.device,
            environment.driver_version,
            environment.platform_version,
            record.measurement.sizes,
            spec.name,
            spec.version,
        )
        groups.setdefault(key, []).append(record)
    return groups.values()


def _order_group(group: Sequence[TuningRecord]) -> tuple[list[TuningRecord], int]:
    """Return the facts of a group, best first, and how many are tied for the best."""
    outdated = find_outdated_records(group)
    first = find_tied_records([record for record in group if record.id not in outdated])

    def sort_key(record: TuningRecord) -> tuple[bool, bool, float, str]:
        is_outdated, is_first = record.id in outdated, record.id in first
        return is_outdated, not is_first, -record.measurement.speedup, record.id

    return sorted(group, key=sort_key), len(first)
