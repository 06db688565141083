"""The store behind the service: facts with trust, keys, demand, pages."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache
from sqlalchemy import Connection, Engine

from feinsum.canonical import WorkloadKey
from feinsum.db.server.api_keys import (
    ApiKey,
    add_key,
    all_keys,
    find_key,
    revoke_key,
    trust_key,
)
from feinsum.db.server.demand import (
    Asked,
    DemandLimits,
    add_misses,
    clear_demands,
    open_demands,
)
from feinsum.db.server.overview import (
    DriverOf,
    Overview,
    drivers_of,
    fastest_facts,
    latest_facts,
    overview,
)
from feinsum.db.server.pages import (
    Having,
    ListedDevice,
    ListedFact,
    ListedWorkload,
    Order,
    count_by_device,
    devices_named,
    find_device,
    find_workload,
    known_ids,
    notations_in,
    ordered_workloads,
    page_of_devices,
    page_of_facts,
    page_of_plans,
    page_of_workloads,
    workloads_in,
)
from feinsum.db.server.patience import Patience, patiently
from feinsum.db.server.reader import Reader
from feinsum.db.server.trust import Fact, Receipt, Trust, keep_owner, receive, trust_in
from feinsum.db.sql.location import Location, locate
from feinsum.db.sql.retracting import find_retractions, known_retractions
from feinsum.db.sql.rows import rows_of
from feinsum.db.sql.statements import (
    ALL_PLANS,
    insert_all_missing,
    retracted,
    sound_plans,
)
from feinsum.db.sql.store import SqlStore, prepared_engine
from feinsum.db.sql.tables import PlanRow
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records import (
    Demand,
    DevicePeaks,
    Document,
    PlanRecord,
    Retraction,
    TuningRecord,
)

T = TypeVar("T")

LEAST_FREE_BYTES = 32 * 2**20
"""Below this a disk counts as full."""


def open_serving_store(
    location: str | os.PathLike[str] | None = None, *, may_create: bool = True
) -> ServingStore:
    """Open a database for the service; see :func:`feinsum.db.open_store`.

    The file of a new one is for its owner alone, since it will have keys and senders.
    """
    place = replace(
        locate(location),
        may_create=may_create,
        may_migrate=may_create,
        is_private=True,
    )
    return ServingStore(prepared_engine(place), place)


COSTLY_S = 0.02
"""A read that takes less of a processor is done again each time."""

FACTOR = 20
"""How many times as long as it took to read a result is kept."""

MOST_KEPT = 256


class Recent:
    """Results by name; of many who ask at once, one reads.

    >>> recent = Recent()
    >>> recent("cheap", lambda: 1), recent("cheap", lambda: 2)
    (1, 2)
    """

    def __init__(
        self,
        cpu_s: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_s, self._clock = cpu_s, clock
        self._lock = Lock()
        self._kept: LRUCache[Hashable, tuple[float, Any]] = LRUCache(MOST_KEPT)

    def __call__(self, name: Hashable, read: Callable[[], T]) -> T:
        """The result of ``read``, or one of at most :data:`FACTOR` times its cost ago.

        Args:
            name: equal for equal reads; results are small.
        """
        with self._lock:
            until, kept = self._kept.get(name, (0.0, None))
            if self._clock() < until:
                found: T = kept
                return found
            before = self._cpu_s()
            found = read()
            cost_s = self._cpu_s() - before
            if cost_s > COSTLY_S:
                self._kept[name] = self._clock() + FACTOR * cost_s, found
            return found


@patiently(
    "add",
    "add_all",
    "add_misses",
    "add_peaks",
    "add_plan",
    "clear_demands",
    "demands",
    "devices_named",
    "drivers_of",
    "fastest_facts",
    "get",
    "key",
    "keys",
    "latest_facts",
    "listed_device",
    "listed_workload",
    "missing",
    "notations",
    "ordered_workloads",
    "overview",
    "page_of_devices",
    "page_of_facts",
    "page_of_plans",
    "page_of_workloads",
    "peaks",
    "plan",
    "plans",
    "receive",
    "retractions",
    "revoke_key",
    "sound_plans",
    "stored_ids",
    "trust",
    "trust_key",
)
class ServingStore(SqlStore):
    """An SQL store with what only the service needs.

    A fact that is added here directly, not through the service, is trusted.
    """

    def __init__(self, engine: Engine, location: Location) -> None:
        super().__init__(engine, location)
        self.patience = Patience()
        self._recent = Recent()
        self._has_failed = False

    def add(self, record: TuningRecord) -> bool:
        return bool(self.add_all([record]))

    def add_plan(self, record: PlanRecord) -> bool:
        return bool(self.add_all([record]))

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return bool(self.add_all([peaks]))

    def add_all(self, documents: Iterable[Document]) -> int:
        given = list(documents)
        rows = [row for document in given for row in rows_of(document)]
        with self._writing() as connection:
            n_new = insert_all_missing(connection, rows)
            keep_owner(connection, [d.id for d in given if isinstance(d, Fact)])
        return n_new

    def check_room(self) -> None:
        """Refuse to store facts if the last write failed, or the disk is full.

        After a failed write, another one is tried, which leaves nothing behind. The
        disk of a database server is not visible from here.

        Raises:
            StoreUnavailableError: if a fact could not be stored now.
        """
        path = self._location.path
        if path is None or self._location.is_read_only:
            return
        if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES:
            raise StoreUnavailableError(
                f"the disk of the database {path} has less than {LEAST_FREE_BYTES} "
                "bytes left; free some space"
            )
        if self._has_failed:
            with self._writing() as connection:
                connection.exec_driver_sql("CREATE TABLE probe (anything TEXT)")
                connection.exec_driver_sql("DROP TABLE probe")

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        # and it stays so if anything is raised before the commit is done
        self._has_failed = True
        with super()._writing() as connection:
            yield connection
        self._has_failed = False

    def stored(self, record_id: str) -> TuningRecord:
        """The record with an id; the error does not reveal where the database is."""
        try:
            return super().stored(record_id)
        except RecordNotFoundError:
            raise RecordNotFoundError(f"no record has the id {record_id!r}") from None

    def reader(self) -> Reader:
        """Fast reads of this database; closed by the caller."""
        return Reader(self._engine, self._location)

    def receive(
        self,
        fact: Fact,
        recorder: str,
        *,
        text: str | None = None,
        is_trusted: bool = False,
    ) -> Receipt:
        """Store a fact that somebody sent (:func:`feinsum.db.server.trust.receive`).

        Args:
            text: of a fact that was read from JSON, if it is known.
        """
        rows = rows_of(fact, text)
        with self._writing() as connection:
            return receive(connection, fact.id, rows, recorder, is_trusted=is_trusted)

    def trust(self, record_id: str) -> Trust:
        """The trust in a fact, or :class:`RecordNotFoundError`."""
        with self._reading() as connection:
            return trust_in(connection, record_id)

    def retractions(
        self, before: tuple[datetime, str] | None = None, limit: int = 100
    ) -> tuple[Retraction, ...]:
        """The latest retractions, newest first; see :func:`known_retractions`."""
        with self._reading() as connection:
            return known_retractions(connection, before, limit)

    def stored_ids(self, record_ids: list[str]) -> frozenset[str]:
        """Those ids that belong to facts here, visible to look-ups or not."""
        with self._reading() as connection:
            return known_ids(connection, record_ids)

    def missing(self, record_ids: list[str]) -> list[str]:
        """Those ids that are neither stored nor retracted, in the order given."""
        with self._reading() as connection:
            known = known_ids(connection, record_ids)
            retracted = find_retractions(connection, record_ids)
        known |= {retraction.document for retraction in retracted}
        return [record_id for record_id in record_ids if record_id not in known]

    def page_of_workloads(self, after: str, limit: int) -> tuple[ListedWorkload, ...]:
        with self._reading() as connection:
            return page_of_workloads(connection, after, limit)

    def ordered_workloads(
        self,
        start: int,
        limit: int,
        order: Order,
        having: Having,
        notations: Collection[str] | None = None,
    ) -> tuple[ListedWorkload, ...]:
        """A page of workloads in an order; see :func:`ordered_workloads`."""
        with self._reading() as connection:
            listed = partial(
                ordered_workloads, connection, start, limit, order, having, notations
            )
            is_whole = notations is None and not (having.key or having.transform)
            name = ("workloads", start, limit, order, having)
            keys = self._recent(name, listed) if is_whole else listed()
            return workloads_in(connection, keys, having.device)

    def devices_named(self, part: str, limit: int) -> tuple[ListedDevice, ...]:
        """Devices whose names have a part, in whatever case."""
        with self._reading() as connection:
            return devices_named(connection, part, limit, self._counts(connection))

    def listed_workload(self, key: str, device_id: str = "") -> ListedWorkload | None:
        with self._reading() as connection:
            return find_workload(connection, key, device_id)

    def notations(self) -> frozenset[str]:
        """The subscripts of workloads; see :func:`notations_in`."""
        with self._reading() as connection:
            return notations_in(connection)

    def page_of_devices(self, after: str, limit: int) -> tuple[ListedDevice, ...]:
        with self._reading() as connection:
            return page_of_devices(connection, after, limit, self._counts(connection))

    def listed_device(self, device_id: str) -> ListedDevice | None:
        with self._reading() as connection:
            return find_device(connection, device_id, self._counts(connection))

    def drivers_of(self, device_id: str) -> tuple[DriverOf, ...]:
        """The drivers with which a device was measured, the latest first."""
        with self._reading() as connection:
            read = partial(drivers_of, connection, device_id)
            return self._recent(("drivers", device_id), read)

    def overview(self) -> Overview:
        with self._reading() as connection:
            return self._recent("overview", partial(overview, connection))

    def _counts(self, connection: Connection) -> Mapping[str, int]:
        return self._recent("devices", partial(count_by_device, connection))

    def latest_facts(
        self, limit: int, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """The facts that were recorded last, the newest first."""
        with self._reading() as connection:
            read = partial(latest_facts, connection, limit, device_id)
            # those of one device are many, and read to be drawn
            return read() if device_id else self._recent(("latest", limit), read)

    def fastest_facts(self, workload: str, limit: int) -> tuple[TuningRecord, ...]:
        """The facts of a workload by speed-up, the best first."""
        with self._reading() as connection:
            return fastest_facts(connection, workload, limit)

    def page_of_facts(
        self,
        after: str,
        limit: int,
        workload: str | None = None,
        device_id: str | None = None,
    ) -> tuple[ListedFact, ...]:
        with self._reading() as connection:
            return page_of_facts(connection, after, limit, workload, device_id)

    def page_of_plans(
        self,
        after: str,
        limit: int,
        workload: str | None = None,
        *,
        only_trusted: bool = False,
    ) -> tuple[ListedFact, ...]:
        with self._reading() as connection:
            return page_of_plans(
                connection, after, limit, workload, only_trusted=only_trusted
            )

    def sound_plans(self, ids: Collection[str]) -> tuple[PlanRecord, ...]:
        """The valid plans with some ids, ordered by id."""
        found = self.documents("plan", ids)
        return tuple(one for one in found if isinstance(one, PlanRecord))

    def plan(self, record_id: str) -> PlanRecord:
        """A plan, or :class:`RecordNotFoundError`."""
        wanted = ALL_PLANS.where(PlanRow.id == record_id, ~retracted(PlanRow))
        for found in sound_plans(self._select(wanted)):
            return found
        raise RecordNotFoundError(f"no plan has the id {record_id!r}")

    def add_misses(
        self,
        counts: Mapping[Asked, int],
        texts: Mapping[WorkloadKey, str],
        limits: DemandLimits,
    ) -> None:
        """Count unanswered requests (:func:`feinsum.db.server.demand.add_misses`)."""
        with self._writing() as connection:
            add_misses(connection, counts, texts, limits)

    def demands(
        self, after: tuple[int, int, str, str] | None = None, limit: int = 100
    ) -> tuple[Demand, ...]:
        with self._reading() as connection:
            return open_demands(connection, after, limit)

    def clear_demands(self, workload: str | None = None) -> int:
        """Delete all demands, or those for a workload; returns their number."""
        with self._writing() as connection:
            return clear_demands(connection, workload)

    def add_key(self, key: ApiKey) -> None:
        with self._writing() as connection:
            add_key(connection, key)

    def key(self, key_id: str) -> ApiKey | None:
        with self._reading() as connection:
            return find_key(connection, key_id)

    def keys(self) -> tuple[ApiKey, ...]:
        with self._reading() as connection:
            return all_keys(connection)

    def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key, or :class:`RecordNotFoundError`."""
        with self._writing() as connection:
            return revoke_key(connection, key_id)

    def trust_key(self, key_id: str, *, is_trusted: bool) -> ApiKey:
        """Mark a key as trusted or not, or :class:`RecordNotFoundError`."""
        with self._writing() as connection:
            return trust_key(connection, key_id, is_trusted=is_trusted)
