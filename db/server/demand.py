"""Demand: workloads that were asked for in vain, counted for whoever tunes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Table, exists, func, or_, select

from feinsum.canonical import WorkloadKey
from feinsum.db.sql.statements import INSERTS, RETRACTED
from feinsum.db.sql.tables import DemandRow, DeviceRow, RecordRow
from feinsum.records import Demand, Miss

__all__ = ["add_misses", "open_demands"]


def add_misses(
    connection: Connection,
    counts: Mapping[Miss, int],
    texts: Mapping[WorkloadKey, str],
    most: int,
) -> None:
    """Add to the counts of demands.

    Args:
        texts: canonical texts of the workloads, where they are known.
        most: no new demand is kept beyond that many; known ones are counted.
    """
    kept = _within(connection, counts, most)
    if not kept:
        return
    now = datetime.now(UTC)
    rows = [
        (one.workload, one.device, texts.get(one.workload), counts[one], now, now)
        for one in sorted(kept, key=lambda miss: (miss.workload, miss.device))
    ]  # in one order, so that several writers wait for each other and not in a circle
    table = cast(Table, DemandRow.__table__)
    names = [column.name for column in table.columns]
    insert = INSERTS[connection.dialect.name](table)
    new = insert.excluded
    counted = insert.on_conflict_do_update(
        index_elements=["workload_key", "device"],
        set_={
            "count": DemandRow.count + new["count"],
            "last_seen": new.last_seen,
            "workload_text": func.coalesce(DemandRow.workload_text, new.workload_text),
        },
    )
    connection.execute(counted, [dict(zip(names, row, strict=True)) for row in rows])


def _within(
    connection: Connection, counts: Mapping[Miss, int], most: int
) -> list[Miss]:
    """The misses that may be kept: known ones, and the most frequent new ones."""
    keys = {miss.workload for miss in counts}
    stored = select(DemandRow.workload_key, DemandRow.device)
    found = connection.execute(stored.where(DemandRow.workload_key.in_(keys)))
    known = {Miss(WorkloadKey(key), device) for key, device in found}
    n_kept = connection.execute(
        select(func.count()).select_from(DemandRow)
    ).scalar_one()
    new = sorted(counts.keys() - known, key=lambda miss: -counts[miss])
    return [*(counts.keys() & known), *new[: max(0, most - n_kept)]]


def open_demands(
    connection: Connection, after: tuple[int, str, str] | None, limit: int
) -> tuple[Demand, ...]:
    """Demands for which no fact is recorded yet, the most wanted first.

    Args:
        after: count, workload and device of the last demand that was seen.
    """
    columns = (
        DemandRow.workload_key,
        DemandRow.workload_text,
        DemandRow.device,
        DemandRow.count,
        DemandRow.first_seen,
        DemandRow.last_seen,
    )
    wanted = select(*columns).where(~_has_fact())
    if after is not None:
        wanted = wanted.where(_follows(*after))
    ordered = wanted.order_by(
        DemandRow.count.desc(), DemandRow.workload_key, DemandRow.device
    )
    rows: Iterable[Any] = connection.execute(ordered.limit(limit))
    return tuple(Demand(*row) for row in rows)


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


def _follows(count: int, workload: str, device: str) -> ColumnElement[bool]:
    row = DemandRow
    return or_(
        row.count < count,
        (row.count == count) & (row.workload_key > workload),
        (row.count == count) & (row.workload_key == workload) & (row.device > device),
    )
