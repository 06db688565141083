"""Retracting facts: finding them, and adding retractions.

A retraction is a separate row, and the fact is unchanged. Look-up statements exclude
retracted facts, so a fact disappears from all answers when the row is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy import cast as sql_cast

from feinsum.db.sql.rows import (
    FACT_TABLES,
    KEYS,
    FactTable,
    complete,
    complete_id,
    count_rows,
    insert_missing,
    make_rows,
    read_documents,
    select_documents,
    select_retracted,
    split_ids,
)
from feinsum.db.sql.tables import (
    DevicePeaksRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    WorkloadRow,
)
from feinsum.errors import InvalidRequestError
from feinsum.records import Retraction, RetractionQuery, get_utc_now


@dataclass(frozen=True)
class Suspect:
    """A fact that is, or would be, retracted.

    Attributes:
        transform: name and version.
        device: device id.
    """

    id: str
    workload: str
    workload_text: str
    transform: str
    device: str
    speedup: float
    recorded_at: datetime


@dataclass(frozen=True)
class SuspectPlan:
    """A fact of a plan that is, or would be, retracted.

    Attributes:
        workload: key of the einsum or the program.
        plan: content id of the plan.
        device: device id.
    """

    id: str
    workload: str
    plan: str
    device: str
    recorded_at: datetime


@dataclass(frozen=True)
class SuspectPeaks:
    """Measured limits that are, or would be, retracted.

    Attributes:
        device: device id.
        recorded_at: when they were measured.
    """

    id: str
    device: str
    bandwidth_bytes_per_s: float
    recorded_at: datetime


@dataclass(frozen=True)
class Retracted:
    """Facts retracted, or to be.

    Attributes:
        suspects: facts of this database; for a service, only the first ones.
        n_facts: total number, with facts of plans and limits.
        n_shared: number of facts of these recorders that are kept, because others sent
            them too.
        unknown: ids without a fact here; they are retracted wherever they may come
            from.
        is_dry_run: whether nothing was written.
        plans, peaks: the facts of plans and the limits among them; for a service, only
            the first ones.
    """

    suspects: tuple[Suspect, ...]
    n_facts: int
    n_shared: int
    unknown: tuple[str, ...]
    is_dry_run: bool
    plans: tuple[SuspectPlan, ...] = ()
    peaks: tuple[SuspectPeaks, ...] = ()


_TRANSFORM = (
    RecordRow.transform_name + "@" + sql_cast(RecordRow.transform_version, String)
)

SUSPECTS: dict[FactTable, tuple[type[Any], Any]] = {
    RecordRow: (
        Suspect,
        select(
            RecordRow.id,
            RecordRow.workload_key,
            WorkloadRow.text,
            _TRANSFORM,
            RecordRow.device_id,
            RecordRow.speedup,
            RecordRow.recorded_at,
        ).join(WorkloadRow, WorkloadRow.key == RecordRow.workload_key),
    ),
    PlanRow: (
        SuspectPlan,
        select(
            PlanRow.id,
            PlanRow.workload_key,
            PlanRow.plan_id,
            PlanRow.device_id,
            PlanRow.recorded_at,
        ),
    ),
    DevicePeaksRow: (
        SuspectPeaks,
        select(
            DevicePeaksRow.id,
            DevicePeaksRow.device_id,
            DevicePeaksRow.bandwidth_bytes_per_s,
            DevicePeaksRow.measured_at,
        ),
    ),
}
"""How facts of each table are listed: the class, and the columns of its fields."""


def retract(
    connection: Connection,
    query: RetractionQuery,
    *,
    reason: str,
    retracted_by: str,
    is_dry_run: bool,
) -> Retracted:
    """Retract the facts of a query that are not retracted yet.

    Args:
        connection: connection in an open transaction.
        query: which facts to retract.
        reason: required if anything is written.
        retracted_by: name of whoever retracts them.
        is_dry_run: whether to report the matches without retracting them.

    Raises:
        InvalidRequestError: without a reason, or if several ids or keys begin like one
            given.
        RecordNotFoundError: if none does.
    """
    if not (is_dry_run or reason.strip()):
        raise InvalidRequestError(
            "no reason was given for the retraction; state one for the users of these "
            "facts"
        )
    ids = [complete_id(connection, digits, *FACT_TABLES) for digits in query.ids]
    query = replace(query, ids=tuple(dict.fromkeys(ids)))
    if query.workload is not None:
        whole_key = complete(connection, query.workload, KEYS) or query.workload
        query = replace(query, workload=whole_key)
    suspects: dict[FactTable, tuple[Any, ...]] = dict.fromkeys(FACT_TABLES, ())
    n_shared = 0
    for table, (kind, columns) in SUSPECTS.items():
        # Plans have no transform, device limits neither a transform nor a workload.
        if (query.transform is not None and table is not RecordRow) or (
            query.workload is not None and table is DevicePeaksRow
        ):
            continue
        matching = columns.where(
            ~select_retracted(table), *_make_conditions(query, table)
        )
        rows = connection.execute(matching.order_by(table.id))
        suspects[table] = tuple(kind(*row) for row in rows)
        n_shared += _count_shared(connection, query, table)
    ids = [suspect.id for listed in suspects.values() for suspect in listed]
    # Ids of facts that are not stored here are retracted, too: copies elsewhere may
    # still arrive by a merge.
    unknown = tuple(find_missing(connection, query.ids))
    if not is_dry_run:
        now = get_utc_now()
        retractions = [
            Retraction(document_id, reason.strip(), retracted_by, now)
            for document_id in (*ids, *unknown)
        ]
        insert_missing(connection, [row for r in retractions for row in make_rows(r)])
    return Retracted(
        suspects[RecordRow],
        len(ids),
        n_shared,
        unknown,
        is_dry_run,
        suspects[PlanRow],
        suspects[DevicePeaksRow],
    )


def find_retractions(
    connection: Connection, ids: Collection[str]
) -> tuple[Retraction, ...]:
    """Return the retractions of some documents, ordered by id."""
    retractions: list[Retraction] = []
    for chunk in split_ids(ids):
        among = RetractionRow.document_id.in_(chunk)
        retractions += _read(connection, select_documents("retraction").where(among))
    return tuple(sorted(retractions, key=lambda retraction: retraction.id))


def find_ids(connection: Connection, fact_ids: Sequence[str]) -> frozenset[str]:
    """Return those ids that belong to stored facts, retracted or not."""
    ids = (select(table.id).where(table.id.in_(fact_ids)) for table in FACT_TABLES)
    return frozenset(i for statement in ids for i in connection.scalars(statement))


def find_missing(connection: Connection, fact_ids: Sequence[str]) -> list[str]:
    """Return those ids that are neither stored nor retracted, in the order given."""
    stored = find_ids(connection, fact_ids)
    retracted = {r.document for r in find_retractions(connection, fact_ids)}
    return [i for i in fact_ids if i not in stored and i not in retracted]


def list_latest_retractions(
    connection: Connection,
    before: tuple[datetime, str] | None = None,
    limit: int = 100,
) -> tuple[Retraction, ...]:
    """Return the latest retractions, newest first, after a time and an id."""
    retracted_at, id_ = RetractionRow.retracted_at, RetractionRow.id
    statement = select_documents("retraction").order_by(retracted_at.desc(), id_)
    if before is not None:
        last_time, last_id = before
        statement = statement.where(
            or_(retracted_at < last_time, (retracted_at == last_time) & (id_ > last_id))
        )
    return tuple(_read(connection, statement.limit(limit)))


def _read(connection: Connection, statement: Select[Any]) -> Iterator[Retraction]:
    rows = connection.execute(statement).all()
    return cast(Iterator[Retraction], read_documents("retraction", rows))


def count_records(connection: Connection) -> int:
    """Return the number of stored records that are not retracted."""
    ids = select(RetractionRow.document_id)
    n = select(func.count()).select_from(RecordRow).where(RecordRow.id.in_(ids))
    # few are retracted: they are found by their ids, and the others are not examined
    return count_rows(connection, RecordRow) - connection.execute(n).scalar_one()


def _make_conditions(
    query: RetractionQuery, table: FactTable
) -> Iterator[ColumnElement[bool]]:
    if query.ids:
        yield table.id.in_(query.ids)
    if query.workload is not None:
        yield table.__table__.c["workload_key"] == query.workload
    if (transform := query.transform_parts) is not None:
        name, version = transform
        yield RecordRow.transform_name == name
        if version is not None:
            yield RecordRow.transform_version == version
    if query.recorders:
        # A fact that others sent, too, does not depend on these recorders.
        is_sent, is_sent_by_others = _select_senders(query, table)
        yield is_sent
        yield ~is_sent_by_others
    elif (since := query.since_instant) is not None:
        # by the clock of the service, if it got the fact: the sender may have chosen
        # any time of recording
        received_at = (
            select(func.min(RecordingRow.received_at))
            .where(RecordingRow.record_id == table.id)
            .scalar_subquery()
        )
        time_column = "measured_at" if table is DevicePeaksRow else "recorded_at"
        yield func.coalesce(received_at, table.__table__.c[time_column]) >= since


def _select_senders(
    query: RetractionQuery, table: FactTable
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Select whether the query's recorders sent a fact since its time, and others did.

    The same recorders before that time count as others.
    """
    is_meant: ColumnElement[bool] = RecordingRow.recorder.in_(query.recorders)
    if (since := query.since_instant) is not None:
        is_meant &= RecordingRow.received_at >= since
    of_fact = exists().where(RecordingRow.record_id == table.id)
    return of_fact.where(is_meant), of_fact.where(~is_meant)


def _count_shared(
    connection: Connection, query: RetractionQuery, table: FactTable
) -> int:
    """Return how many facts are kept because others sent them, too."""
    if not query.recorders:
        return 0
    shared = select(func.count()).select_from(table)
    shared = shared.where(~select_retracted(table), *_select_senders(query, table))
    return connection.execute(shared).scalar_one()
