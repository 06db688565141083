"""Demand: unanswered requests for workloads, counted for tuning.

Demand is counted per caller, so that workloads wanted by many precede those that one
caller requests often, and so that no caller uses up the space of others. Demands that
are not repeated expire, soon if their text is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
    update,
)

from feinsum.canonical import WorkloadKey
from feinsum.db.sql.rows import INSERTS, RETRACTED, complete, split_into_batches
from feinsum.db.sql.tables import DemandCallerRow, DemandRow, DeviceRow, RecordRow
from feinsum.records import Demand, Miss

UNREADABLE_DAYS = 1.0
"""Days after which a demand without a text expires.

Without its text a workload cannot be tuned, and keys are easy to make up.
"""

MAX_CHARACTERS = 1_000_000
"""Maximum characters of the texts on one page of demands."""

CHUNK = 400
"""Demands in one statement; SQLite limits the number of variables."""


class DemandRequest(NamedTuple):
    """An unanswered request of a caller.

    Attributes:
        caller: identifies the caller.
    """

    miss: Miss
    caller: str


class DemandLimits(NamedTuple):
    """Limits on stored demands.

    Attributes:
        most: maximum over all callers; beyond it, those with the fewest callers are
            dropped.
        of_caller: maximum per caller; beyond it, new ones are not stored.
        days: lifetime of a demand that is not repeated.
    """

    most: int = 100_000
    of_caller: int = 1_000
    days: float = 90.0


def add_misses(
    connection: Connection,
    counts: Mapping[DemandRequest, int],
    texts: Mapping[WorkloadKey, str],
    limits: DemandLimits,
) -> None:
    """Add to the counts of demands, and drop those that expired or exceed the limits.

    The texts are canonical, of those workloads for which they are known.
    """
    now = datetime.now(UTC)
    # Before new demands, so that old ones never use up the limit.
    _delete_expired(connection, now, limits)
    # All writers lock rows in one order, so that they never deadlock.
    requests = sorted(
        _limit_requests(connection, counts, limits.of_caller),
        key=lambda request: (*request.miss.sort_key, request.caller),
    )
    if not requests:
        return
    totals: dict[Miss, int] = {}
    for request in requests:
        totals[request.miss] = totals.get(request.miss, 0) + counts[request]
    demands = [
        (*miss.sort_key, texts.get(miss.workload), n, 1, now, now)
        for miss, n in totals.items()
    ]
    callers = [(*r.miss.sort_key, r.caller, counts[r], now) for r in requests]
    _upsert(connection, DemandRow, demands)
    _upsert(connection, DemandCallerRow, callers)
    _count_callers(connection, list(totals))
    _drop_surplus(connection, limits.most)


def _upsert(
    connection: Connection,
    row_class: type[DemandRow | DemandCallerRow],
    rows: Iterable[tuple[Any, ...]],
) -> None:
    """Insert rows, or add their counts to those that exist."""
    table = row_class.__table__
    insert = INSERTS[connection.dialect.name](table)
    inserted = insert.excluded
    changes = {
        "count": table.c["count"] + inserted["count"],
        "last_seen": inserted.last_seen,
    }
    if row_class is DemandRow:
        text = func.coalesce(table.c.workload_text, inserted.workload_text)
        changes["workload_text"] = text
    statement = insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=changes
    )
    names = [column.name for column in table.columns]
    values = [dict(zip(names, row, strict=True)) for row in rows]
    connection.execute(statement, values)


def _limit_requests(
    connection: Connection, counts: Mapping[DemandRequest, int], limit: int
) -> list[DemandRequest]:
    """Return the requests to store: repeated ones, and new ones up to the limit."""
    by_caller: dict[str, list[DemandRequest]] = {}
    for request in counts:
        by_caller.setdefault(request.caller, []).append(request)
    row = DemandCallerRow
    stored: list[DemandRequest] = []
    for caller, requests in by_caller.items():
        statement = select(row.workload_key, row.device).where(row.caller == caller)
        earlier = {
            Miss(WorkloadKey(key), device)
            for key, device in connection.execute(statement)
        }
        stored += [request for request in requests if request.miss in earlier]
        unknown = [request for request in requests if request.miss not in earlier]
        unknown.sort(key=lambda request: -counts[request])  # the most wanted fit first
        stored += unknown[: max(0, limit - len(earlier))]
    return stored


def _count_callers(connection: Connection, misses: list[Miss]) -> None:
    """Update how many callers requested each demand."""
    row = DemandCallerRow
    is_same = and_(
        row.workload_key == DemandRow.workload_key, row.device == DemandRow.device
    )
    n_callers = select(func.count()).select_from(row).where(is_same).scalar_subquery()
    for part in split_into_batches(misses, CHUNK):
        among = [miss.workload for miss in part]
        # demands from before callers were stored have none, and keep their count
        statement = update(DemandRow).where(
            DemandRow.workload_key.in_(among), exists().where(is_same)
        )
        connection.execute(statement.values(n_callers=n_callers))


def _delete_expired(
    connection: Connection, now: datetime, limits: DemandLimits
) -> None:
    """Delete demands that were not repeated for a long time."""
    unreadable_days = min(UNREADABLE_DAYS, limits.days)
    is_old = DemandRow.last_seen < now - timedelta(days=limits.days)
    is_unreadable = and_(
        DemandRow.workload_text.is_(None),
        DemandRow.last_seen < now - timedelta(days=unreadable_days),
    )
    _delete(connection, or_(is_old, is_unreadable))


def _drop_surplus(connection: Connection, limit: int) -> None:
    """Delete demands beyond the limit: first those without text, then rare ones."""
    row = DemandRow
    n_demands = connection.scalar(select(func.count()).select_from(row)) or 0
    if n_demands <= limit:
        return
    least_wanted = select(row.workload_key, row.device).order_by(
        row.workload_text.is_not(None), row.n_callers, row.last_seen, row.workload_key
    )
    surplus = connection.execute(least_wanted.limit(n_demands - limit)).all()
    for part in split_into_batches(map(tuple, surplus), CHUNK):
        _delete(connection, tuple_(row.workload_key, row.device).in_(part))


def _delete(connection: Connection, condition: ColumnElement[bool]) -> int:
    """Delete demands and their callers; returns the number of demands."""
    n_deleted = connection.execute(delete(DemandRow).where(condition)).rowcount
    if n_deleted:
        row = DemandCallerRow
        has_demand = exists().where(
            DemandRow.workload_key == row.workload_key, DemandRow.device == row.device
        )
        connection.execute(delete(row).where(~has_demand))
    return n_deleted


def clear_demands(connection: Connection, workload: str | None = None) -> int:
    """Delete all demands, or those for a workload; returns their number.

    Raises:
        InvalidRequestError: if several keys begin with the one given.
    """
    key = DemandRow.workload_key
    if workload is None:
        return _delete(connection, key.is_not(None))
    whole_key = complete(connection, workload, [key]) or workload
    return _delete(connection, key == whole_key)


def open_demands(
    connection: Connection,
    after: tuple[int, int, str, str] | None = None,
    limit: int = 100,
) -> tuple[Demand, ...]:
    """Return demands without a recorded fact, most wanted first, after a position."""
    row = DemandRow
    statement = select(
        row.workload_key,
        row.workload_text,
        row.device,
        row.count,
        row.first_seen,
        row.last_seen,
        row.n_callers,
    ).where(~_has_fact())
    order = -row.n_callers, -row.count, row.workload_key, row.device
    if after is not None:
        n_callers, count, workload, device = after
        statement = statement.where(
            tuple_(*order) > tuple_(-n_callers, -count, workload, device)
        )
    statement = statement.order_by(*order)
    demands: list[Demand] = []
    n_characters = 0
    rows: Iterable[Any] = connection.execute(statement.limit(limit))
    for values in rows:
        demands.append(Demand(*values))
        n_characters += len(values.workload_text or "")
        # Texts are those of callers, who may send long ones.
        if n_characters >= MAX_CHARACTERS:
            break
    return tuple(demands)


def _has_fact() -> ColumnElement[bool]:
    """Select whether a fact of the workload is recorded on the named device."""
    is_named = or_(
        DemandRow.device == "",
        DemandRow.device == DeviceRow.id,
        DemandRow.device == DeviceRow.name,
    )
    return exists().where(
        RecordRow.workload_key == DemandRow.workload_key,
        DeviceRow.id == RecordRow.device_id,
        is_named,
        ~RETRACTED,
    )
