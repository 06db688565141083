"""Demand: unanswered requests for workloads, counted for tuning.

Demand is counted per caller, so that workloads wanted by many precede those that one
caller requests often, and so that nobody uses up the space of others. Demands that are
not repeated expire, soon if their text is unknown.
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
from feinsum.db.sql.statements import INSERTS, RETRACTED
from feinsum.db.sql.tables import DemandCallerRow, DemandRow, DeviceRow, RecordRow
from feinsum.records import Demand, Miss

UNTOLD_DAYS = 1.0
"""After how many days a demand expires of which nobody sent the text."""

MOST_CHARACTERS = 1_000_000
"""Most characters of the texts on one page of demands."""

CHUNK = 400


class Asked(NamedTuple):
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
    counts: Mapping[Asked, int],
    texts: Mapping[WorkloadKey, str],
    limits: DemandLimits,
) -> None:
    """Add to the counts of demands, and drop those that expired or exceed the limits.

    Args:
        texts: canonical texts of the workloads, if known.
    """
    now = datetime.now(UTC)
    _expire(connection, now, limits)
    kept = _within(connection, counts, limits.of_caller)
    if not kept:
        return
    ordered = sorted(kept, key=lambda one: (*one.miss.place, one.caller))
    # all writers lock rows in one order, so that they never deadlock
    totals: dict[Miss, int] = {}
    for one in ordered:
        totals[one.miss] = totals.get(one.miss, 0) + counts[one]
    _upsert(
        connection,
        DemandRow,
        [
            (*miss.place, texts.get(miss.workload), n, 1, now, now)
            for miss, n in totals.items()
        ],
    )
    _upsert(
        connection,
        DemandCallerRow,
        [(*one.miss.place, one.caller, counts[one], now) for one in ordered],
    )
    _count_callers(connection, list(totals))
    _make_room(connection, limits.most)


def _upsert(
    connection: Connection,
    kind: type[DemandRow | DemandCallerRow],
    rows: Iterable[tuple[Any, ...]],
) -> None:
    """Insert rows, or add their counts to those that there are."""
    table = kind.__table__
    insert = INSERTS[connection.dialect.name](table)
    new = insert.excluded
    changed = {"count": table.c["count"] + new["count"], "last_seen": new.last_seen}
    if kind is DemandRow:
        known = table.c.workload_text
        changed["workload_text"] = func.coalesce(known, new.workload_text)
    counted = insert.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=changed
    )
    names = [column.name for column in table.columns]
    values = [dict(zip(names, row, strict=True)) for row in rows]
    connection.execute(counted, values)


def _within(
    connection: Connection, counts: Mapping[Asked, int], of_caller: int
) -> list[Asked]:
    """Demands to keep: those a caller has already, and new ones up to its limit."""
    by_caller: dict[str, list[Asked]] = {}
    for one in counts:
        by_caller.setdefault(one.caller, []).append(one)
    kept: list[Asked] = []
    row = DemandCallerRow
    for caller, asked in by_caller.items():
        mine = select(row.workload_key, row.device).where(row.caller == caller)
        known = {
            Miss(WorkloadKey(key), device) for key, device in connection.execute(mine)
        }
        kept += [one for one in asked if one.miss in known]
        new = [one for one in asked if one.miss not in known]
        new.sort(key=lambda one: -counts[one])
        kept += new[: max(0, of_caller - len(known))]
    return kept


def _count_callers(connection: Connection, misses: list[Miss]) -> None:
    """Write down how many callers asked for each demand."""
    row = DemandCallerRow
    same = and_(
        row.workload_key == DemandRow.workload_key, row.device == DemandRow.device
    )
    n_callers = select(func.count()).select_from(row).where(same).scalar_subquery()
    for first in range(0, len(misses), CHUNK):
        among = [miss.workload for miss in misses[first : first + CHUNK]]
        changed = update(DemandRow).where(
            DemandRow.workload_key.in_(among), exists().where(same)
        )  # what was counted before callers were told apart has none
        connection.execute(changed.values(n_callers=n_callers))


def _expire(connection: Connection, now: datetime, limits: DemandLimits) -> None:
    """Forget what nobody asked for in a long time."""
    is_old = DemandRow.last_seen < now - timedelta(days=limits.days)
    is_untold = and_(
        DemandRow.workload_text.is_(None),
        DemandRow.last_seen < now - timedelta(days=min(UNTOLD_DAYS, limits.days)),
    )
    _remove(connection, or_(is_old, is_untold))


def _make_room(connection: Connection, most: int) -> None:
    """Forget what is beyond the limit: what nobody can tune, or fewest asked for."""
    n_kept = connection.execute(
        select(func.count()).select_from(DemandRow)
    ).scalar_one()
    if n_kept <= most:
        return
    row = DemandRow
    least = select(row.workload_key, row.device).order_by(
        row.workload_text.is_not(None), row.n_callers, row.last_seen, row.workload_key
    )
    gone = connection.execute(least.limit(n_kept - most)).all()
    for first in range(0, len(gone), CHUNK):
        part = [tuple(one) for one in gone[first : first + CHUNK]]
        _remove(connection, tuple_(row.workload_key, row.device).in_(part))


def _remove(connection: Connection, which: ColumnElement[bool]) -> int:
    """Forget demands and who asked for them; how many there were."""
    gone = connection.execute(delete(DemandRow).where(which))
    if gone.rowcount:
        row = DemandCallerRow
        is_left = exists().where(
            DemandRow.workload_key == row.workload_key, DemandRow.device == row.device
        )
        connection.execute(delete(row).where(~is_left))
    return gone.rowcount


def clear_demands(connection: Connection, workload: str | None = None) -> int:
    """Delete all demands, or those for a workload; returns their number."""
    every = DemandRow.workload_key.is_not(None)
    return _remove(
        connection, every if workload is None else DemandRow.workload_key == workload
    )


def open_demands(
    connection: Connection, after: tuple[int, int, str, str] | None, limit: int
) -> tuple[Demand, ...]:
    """Demands without a recorded fact, most wanted first.

    Args:
        after: position of the last demand seen.
    """
    columns = (
        DemandRow.workload_key,
        DemandRow.workload_text,
        DemandRow.device,
        DemandRow.count,
        DemandRow.first_seen,
        DemandRow.last_seen,
        DemandRow.n_callers,
    )
    wanted = select(*columns).where(~_has_fact())
    if after is not None:
        wanted = wanted.where(_follows(*after))
    ordered = wanted.order_by(
        DemandRow.n_callers.desc(),
        DemandRow.count.desc(),
        DemandRow.workload_key,
        DemandRow.device,
    )
    found: list[Demand] = []
    n_characters = 0
    rows: Iterable[Any] = connection.execute(ordered.limit(limit))
    for row in rows:
        found.append(Demand(*row))
        n_characters += len(row.workload_text or "")
        if n_characters >= MOST_CHARACTERS:
            break
    return tuple(found)


def _has_fact() -> ColumnElement[bool]:
    """Something is recorded for the workload, on the device that was named."""
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


def _follows(
    n_callers: int, count: int, workload: str, device: str
) -> ColumnElement[bool]:
    row = DemandRow
    many = row.n_callers == n_callers
    often = and_(many, row.count == count)
    return or_(
        row.n_callers < n_callers,
        and_(many, row.count < count),
        and_(often, row.workload_key > workload),
        and_(often, row.workload_key == workload, row.device > device),
    )
