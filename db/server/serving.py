"""The store behind the service: facts with trust, keys, demand, pages.

Each method is a function of a connection in one of the modules beside this one, which
the store runs in a transaction and retries while a database server restarts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from cachetools import LRUCache
from sqlalchemy import ColumnElement, Connection, Engine

from feinsum.db.address import Location, locate
from feinsum.db.server import api_keys, demand, pages
from feinsum.db.server.pages import (
    Having,
    ListedDevice,
    ListedWorkload,
    Order,
    Overview,
)
from feinsum.db.server.reader import Reader
from feinsum.db.sql.engine import MAX_WAIT_S
from feinsum.db.sql.retracting import (
    find_missing,
    list_latest_retractions,
)
from feinsum.db.sql.rows import FACT_TABLES, KEYS, complete, complete_id, make_rows
from feinsum.db.sql.statistics import DriverCount
from feinsum.db.sql.store import SqlStore, prepare_engine, reads, writes
from feinsum.db.sql.tables import DeviceRow
from feinsum.db.sql.trust import (
    Fact,
    Receipt,
    find_trust,
    insert_received,
)
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records import PlanRecord, Serialized, TuningRecord

T = TypeVar("T")
P = ParamSpec("P")

MIN_FREE_BYTES = 32 * 2**20
"""A disk with fewer free bytes counts as full."""

COSTLY_S = 0.02
"""Results of reads that take less processor time are not cached: they stay current."""

KEEP_FACTOR = 20
"""A result is cached this many times as long as it took to read. So costly reads take
at most a twentieth of a processor, however often they are requested.
"""

MAX_RESULTS = 256


def open_serving_store(
    location: str | os.PathLike[str] | None = None, *, may_create: bool = True
) -> ServingStore:
    """Open a database for the service; see :func:`feinsum.db.open_store`.

    The file of a new one is for its owner alone, since it will have keys and senders.
    """
    target = replace(
        locate(location),
        may_create=may_create,
        may_migrate=may_create,
        is_private=True,
    )
    return ServingStore(prepare_engine(target)[0], target)


class CostlyResults:
    """Results of costly reads by name; of many callers at once, one reads.

    >>> results = CostlyResults()
    >>> results("cheap", lambda: 1), results("cheap", lambda: 2)
    (1, 2)
    """

    def __init__(
        self,
        cpu_s: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cpu_s, self._clock = cpu_s, clock
        self._lock = Lock()
        self._results: LRUCache[Hashable, tuple[float, Any]] = LRUCache(MAX_RESULTS)

    def __call__(self, name: Hashable, read: Callable[[], T]) -> T:
        """Return the result of ``read``, or a recent one of a read of that name."""
        # The lock is held while reading: of many callers at once, one reads.
        with self._lock:
            until, result = self._results.get(name, (0.0, None))
            if self._clock() < until:
                return cast(T, result)
            start_s = self._cpu_s()
            result = read()
            cost_s = self._cpu_s() - start_s
            if cost_s > COSTLY_S:
                self._results[name] = self._clock() + KEEP_FACTOR * cost_s, result
            return result


class ServingStore(SqlStore):
    """An SQL store with what only the service needs."""

    max_wait_s = MAX_WAIT_S

    def __init__(self, engine: Engine, location: Location) -> None:
        super().__init__(engine, location)
        self._results = CostlyResults()

    # Ids and keys of which only the beginning is given.

    def complete_fact(self, digits: str) -> str:
        """Return the only id of a fact that begins so; see :func:`complete_id`."""
        return self.read(complete_id, digits, *FACT_TABLES)

    def complete_device(self, digits: str) -> str:
        """Return the only id of a device that begins so; see :func:`complete_id`."""
        return self.read(complete_id, digits, DeviceRow)

    def complete_key(self, start: str) -> str:
        """Return the only key of a workload that begins so; ``start`` without one.

        Raises:
            InvalidRequestError: if several begin so, and none is ``start``.
        """
        return self.read(complete, start, KEYS) or start

    # Facts and who sent them.

    trust = reads(find_trust)
    missing = reads(find_missing)
    retractions = reads(list_latest_retractions)

    def receive(
        self,
        fact: Fact,
        recorder: str,
        *,
        serialized: Serialized | None = None,
        is_trusted: bool = False,
    ) -> Receipt:
        """Store a fact that somebody sent, and who sent it, in one transaction.

        A fact that was parsed from JSON is not serialized again if its form is given.
        """
        rows = make_rows(fact, serialized)  # before the lock: it refuses bad documents
        return self.write(
            insert_received, fact.id, rows, recorder, is_trusted=is_trusted
        )

    def stored(self, record_id: str) -> TuningRecord:
        """Return a record; the error does not reveal where the database is."""
        try:
            return super().stored(record_id)
        except RecordNotFoundError:
            raise RecordNotFoundError(f"no record has the id {record_id!r}") from None

    def sound_plans(self, ids: Collection[str]) -> tuple[PlanRecord, ...]:
        """Return the valid plans with some ids, ordered by id."""
        return cast(tuple[PlanRecord, ...], tuple(self.documents("plan", ids)))

    def plan(self, record_id: str) -> PlanRecord:
        """Return a plan.

        Raises:
            RecordNotFoundError: if there is none.
        """
        for plan in self.sound_plans([record_id]):
            return plan
        raise RecordNotFoundError(f"no plan has the id {record_id!r}")

    def reader(self) -> Reader:
        """Return a reader for look-ups, which the caller closes."""
        return Reader(self.location)

    # Lists and totals; of those that read all facts, costly results are kept.

    page_of_workloads = reads(pages.list_workload_page)
    page_of_facts = reads(partial(pages.list_documents, kind="record"))
    page_of_plans = reads(partial(pages.list_documents, kind="plan"))
    fastest_facts = reads(pages.list_fastest_facts)

    def ordered_workloads(
        self,
        start: int,
        limit: int,
        order: Order,
        having: Having,
        notations: Collection[str] | None = None,
    ) -> tuple[ListedWorkload, ...]:
        """Return a page of workloads; see :func:`pages.ordered_workloads`."""
        # A text that anybody types has too many values to keep results by it.
        is_whole = notations is None and not (having.key or having.transform)
        read = self._read_costly if is_whole else self.read
        keys = read(pages.list_ordered_keys, start, limit, order, having, notations)
        return self.read(pages.get_workloads, keys, having.device)

    def listed_workload(self, key: str, device_id: str = "") -> ListedWorkload | None:
        """Return the workload of a key if it has a fact, or has one of a device."""
        return next(iter(self.read(pages.get_workloads, [key], device_id)), None)

    def devices_named(self, text: str, limit: int) -> tuple[ListedDevice, ...]:
        """Return devices whose names contain a text, ignoring case."""
        devices = self._list_devices(pages.is_device_named(text), limit)
        return tuple(
            sorted(devices, key=lambda listed: (listed.device.name, listed.id))
        )

    def page_of_devices(self, after: str, limit: int) -> tuple[ListedDevice, ...]:
        """Return devices by id, after ``after``."""
        return self._list_devices(DeviceRow.id > after, limit)

    def listed_device(self, device_id: str) -> ListedDevice | None:
        """Return the device with an id."""
        return next(iter(self._list_devices(DeviceRow.id == device_id, 1)), None)

    def _list_devices(
        self, condition: ColumnElement[bool], limit: int
    ) -> tuple[ListedDevice, ...]:
        counts = self._read_costly(pages.count_by_device)
        return self.read(pages.list_devices, condition, limit, counts)

    def notations(self) -> frozenset[str]:
        """Return the subscripts of all workloads; see :func:`pages.find_notations`."""
        return self._read_costly(pages.find_notations)

    def drivers_of(self, device_id: str) -> tuple[DriverCount, ...]:
        """Return the drivers with which a device was measured, latest first."""
        return self._read_costly(pages.list_drivers, device_id)

    def overview(self) -> Overview:
        """Count the contents."""
        return self._read_costly(pages.count_contents)

    def latest_facts(
        self, limit: int, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """Return the facts that were recorded last, newest first."""
        # of a device they are read to be drawn, and there are many devices
        read = self._read_costly if device_id is None else self.read
        return read(pages.list_latest_facts, limit, device_id)

    def _read_costly(
        self,
        query: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read, or return a recent result if reading is costly."""
        name = (query.__name__, *args)
        return self._results(name, lambda: self.read(query, *args, **kwargs))

    # Demand and keys.

    add_misses = writes(demand.add_misses)
    demands = reads(demand.open_demands)
    clear_demands = writes(demand.clear_demands)
    add_key = writes(api_keys.add_key)
    key = reads(api_keys.find_key)
    keys = reads(api_keys.list_api_keys)
    revoke_key = writes(api_keys.revoke_key)
    trust_key = writes(api_keys.trust_key)

    def check_room(self) -> None:
        """Refuse to store facts if the last write failed, or the disk is full.

        After a failed write, another one is tried, which leaves nothing behind. The
        disk of a database server is not visible from here.

        Raises:
            StoreUnavailableError: if a fact could not be stored now.
        """
        path = self.path
        if path is None or self.location.is_read_only:
            return
        if shutil.disk_usage(path.parent).free < MIN_FREE_BYTES:
            raise StoreUnavailableError(
                f"the disk of the database {path} has less than {MIN_FREE_BYTES} "
                "bytes left; free some space"
            )
        if self.has_failed:
            self.write(_write_nothing)


def _write_nothing(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE probe (anything TEXT)")
    connection.exec_driver_sql("DROP TABLE probe")
