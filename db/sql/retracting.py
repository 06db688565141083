"""Retracting facts: finding them, and adding retractions.

A retraction is a separate row, and the fact is unchanged. Look-up statements exclude
retracted facts, so a fact disappears from all answers when the row is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from sqlalchemy import ColumnElement, Connection, exists, func, or_, select

from feinsum.db.sql.rows import rows_of
from feinsum.db.sql.statements import (
    RETRACTED,
    RETRACTIONS,
    insert_all_missing,
    retracted,
    sound_retractions,
)
from feinsum.db.sql.tables import (
    DevicePeaksRow,
    PlanRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    WorkloadRow,
)
from feinsum.errors import InvalidRequestError, RecordNotFoundError
from feinsum.records import Retraction, RetractionQuery, utc_now
from feinsum.records.retraction import DIGITS

OWNER = ""
"""The recorder of a fact that is also in the database by the will of its owner."""

KeptRow: TypeAlias = type[RecordRow] | type[PlanRow] | type[DevicePeaksRow]

KEPT: tuple[KeptRow, ...] = (RecordRow, PlanRow, DevicePeaksRow)
"""The tables of facts; limits of devices are facts, too."""

AT_ONCE = 500
"""How many ids are asked for in one statement."""


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
        reason: required if anything is written.

    Raises:
        InvalidRequestError: without a reason, or if the prefix of an id matches several
            facts.
        RecordNotFoundError: if it matches none.
    """
    if not (is_dry_run or reason.strip()):
        raise InvalidRequestError(
            "no reason was given for the retraction; state one for the users of these "
            "facts"
        )
    suspects, plans = _suspects(connection, query), _plans(connection, query)
    peaks = _peaks(connection, query)
    ids = [one.id for found in (suspects, plans, peaks) for one in found]
    unknown = _unknown(connection, query, ids)
    if not is_dry_run:
        now = utc_now()
        _write(
            connection,
            [
                Retraction(one, reason.strip(), retracted_by, now)
                for one in (*ids, *unknown)
            ],
        )
    n_shared = sum(_n_shared(connection, query, row) for row in _rows(query))
    return Retracted(suspects, len(ids), n_shared, unknown, is_dry_run, plans, peaks)


def find_retractions(
    connection: Connection, ids: Collection[str]
) -> tuple[Retraction, ...]:
    """The retractions of some documents, ordered by id."""
    found: list[Retraction] = []
    wanted = sorted(ids)
    for first in range(0, len(wanted), AT_ONCE):
        among = RetractionRow.document_id.in_(wanted[first : first + AT_ONCE])
        rows = connection.execute(RETRACTIONS.where(among)).all()
        found += sound_retractions(rows)
    return tuple(sorted(found, key=lambda retraction: retraction.id))


def known_retractions(
    connection: Connection, before: tuple[datetime, str] | None, limit: int
) -> tuple[Retraction, ...]:
    """The latest retractions, newest first.

    Args:
        before: time and id of the last one seen.
    """
    at, name = RetractionRow.retracted_at, RetractionRow.id
    wanted = RETRACTIONS.order_by(at.desc(), name)
    if before is not None:
        time, seen = before
        wanted = wanted.where(or_(at < time, (at == time) & (name > seen)))
    return tuple(sound_retractions(connection.execute(wanted.limit(limit)).all()))


def hidden(connection: Connection) -> int:
    """The number of facts hidden from look-ups: those that are retracted."""
    ids = select(RetractionRow.document_id)
    there = select(func.count()).select_from(RecordRow).where(RecordRow.id.in_(ids))
    return connection.execute(there).scalar_one()


def _suspects(connection: Connection, query: RetractionQuery) -> tuple[Suspect, ...]:
    columns = (
        RecordRow.id,
        RecordRow.workload_key,
        WorkloadRow.text,
        RecordRow.transform_name,
        RecordRow.transform_version,
        RecordRow.device_id,
        RecordRow.speedup,
        RecordRow.recorded_at,
    )
    wanted = (
        select(*columns)
        .join(WorkloadRow, WorkloadRow.key == RecordRow.workload_key)
        .where(~RETRACTED, *_conditions(query, RecordRow))
        .order_by(RecordRow.id)
    )
    return tuple(_suspect(*row) for row in connection.execute(wanted))


def _plans(connection: Connection, query: RetractionQuery) -> tuple[SuspectPlan, ...]:
    if PlanRow not in _rows(query):
        return ()
    wanted = (
        select(
            PlanRow.id,
            PlanRow.workload_key,
            PlanRow.plan_id,
            PlanRow.device_id,
            PlanRow.recorded_at,
        )
        .where(~retracted(PlanRow), *_conditions(query, PlanRow))
        .order_by(PlanRow.id)
    )
    return tuple(SuspectPlan(*row) for row in connection.execute(wanted))


def _peaks(connection: Connection, query: RetractionQuery) -> tuple[SuspectPeaks, ...]:
    row = DevicePeaksRow
    if row not in _rows(query):
        return ()
    columns = row.id, row.device_id, row.bandwidth_bytes_per_s, row.measured_at
    wanted = select(*columns).where(~retracted(row), *_conditions(query, row))
    found = connection.execute(wanted.order_by(row.id))
    return tuple(SuspectPeaks(*one) for one in found)


def _rows(query: RetractionQuery) -> tuple[KeptRow, ...]:
    """Tables of facts that may fulfil a query.

    Plans have no transform, and limits of devices no workload either.
    """
    if query.transform is not None:
        return (RecordRow,)
    return KEPT if query.workload is None else (RecordRow, PlanRow)


def _suspect(
    record_id: str,
    workload: str,
    text: str,
    name: str,
    version: int,
    device: str,
    speedup: float,
    recorded_at: datetime,
) -> Suspect:
    transform = f"{name}@{version}"
    return Suspect(record_id, workload, text, transform, device, speedup, recorded_at)


def _conditions(query: RetractionQuery, row: KeptRow) -> Iterator[ColumnElement[bool]]:
    if query.ids:
        yield _has_id(query.ids, row)
    if query.workload is not None:
        yield row.__table__.c["workload_key"] == query.workload
    if (transform := query.transform_parts) is not None:
        name, version = transform
        yield RecordRow.transform_name == name
        if version is not None:
            yield RecordRow.transform_version == version
    if query.recorders:
        yield _sent_by(query, row)
        yield ~_sent_by_others(query, row)
    elif (since := query.since_instant) is not None:
        # by the clock of the service, if it got the fact: recorded_at is by the sender
        received_at = (
            select(func.min(RecordingRow.received_at))
            .where(RecordingRow.record_id == row.id)
            .scalar_subquery()
        )
        at = "measured_at" if row is DevicePeaksRow else "recorded_at"
        yield func.coalesce(received_at, row.__table__.c[at]) >= since


def _has_id(ids: Iterable[str], row: KeptRow) -> ColumnElement[bool]:
    whole = [digits for digits in ids if len(digits) == DIGITS]
    begun = [row.id.like(f"{one}%") for one in ids if len(one) < DIGITS]
    return or_(row.id.in_(whole), *begun)


def _sent_by(query: RetractionQuery, row: KeptRow) -> ColumnElement[bool]:
    sent = [
        RecordingRow.record_id == row.id,
        RecordingRow.recorder.in_(query.recorders),
    ]
    if (since := query.since_instant) is not None:
        sent.append(RecordingRow.received_at >= since)
    return exists().where(*sent)


def _sent_by_others(query: RetractionQuery, row: KeptRow) -> ColumnElement[bool]:
    """Somebody else sent the fact too, or these did before that time."""
    of_record = RecordingRow.record_id == row.id
    is_other: ColumnElement[bool] = RecordingRow.recorder.not_in(query.recorders)
    if (since := query.since_instant) is not None:
        is_other = or_(is_other, RecordingRow.received_at < since)
    return exists().where(of_record, is_other)


def _n_shared(connection: Connection, query: RetractionQuery, row: KeptRow) -> int:
    if not query.recorders:
        return 0
    shared = select(func.count()).select_from(row)
    sent = shared.where(
        ~retracted(row), _sent_by(query, row), _sent_by_others(query, row)
    )
    return connection.execute(sent).scalar_one()


def _unknown(
    connection: Connection, query: RetractionQuery, suspects: Iterable[str]
) -> tuple[str, ...]:
    """The whole ids that are of no fact here, and are not retracted yet."""
    found = set(suspects)
    left = [digits for digits in dict.fromkeys(query.ids) if digits not in found]
    for digits in [digits for digits in left if len(digits) < DIGITS]:
        n = sum(one.startswith(digits) for one in found)
        if n > 1:
            raise InvalidRequestError(
                f"{n} facts have ids that begin with {digits}; give more digits"
            )
        if n == 1 or _is_stored(connection, digits):
            left.remove(digits)
            continue
        raise RecordNotFoundError(
            f"no record has an id that begins with {digits}; list ids with "
            "'feinsum query --json'"
        )
    retracted = {one.document for one in find_retractions(connection, left)}
    return tuple(
        one for one in left if one not in retracted and not _is_stored(connection, one)
    )


def _is_stored(connection: Connection, digits: str) -> bool:
    """Whether a fact here has such an id, if it fulfils the other conditions or not."""
    found = (select(exists().where(_has_id([digits], row))) for row in KEPT)
    return any(connection.scalar(one) is True for one in found)


def _write(connection: Connection, retractions: Iterable[Retraction]) -> None:
    insert_all_missing(connection, [row for one in retractions for row in rows_of(one)])
