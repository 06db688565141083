"""Trust: who recorded a fact, and which facts wait in quarantine for others.

A fact in quarantine is in the database and in no look-up. It is released when
enough others agree with it: facts of other recorders with the same recipe for
the same workload on the same device, whose speed-ups are within a factor of
:data:`AGREEMENT`. One fact that is trusted already is enough; so is one that was
recorded into the database itself and not through the service. The service looks for
agreement when a fact arrives, is imported or is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, delete, exists, select, text

from feinsum.db.sql.retracting import OWNER, find_retractions
from feinsum.db.sql.rows import rows_of
from feinsum.db.sql.statements import (
    RECORDS,
    RETRACTED,
    TRUSTED,
    WAITING,
    insert_missing,
    insert_missing_rows,
    sound_records,
)
from feinsum.db.sql.tables import QuarantineRow, RecordingRow, RecordRow
from feinsum.errors import RecordNotFoundError
from feinsum.records import Retraction, TuningRecord

__all__ = [
    "AGREEMENT",
    "Recording",
    "Trust",
    "Witness",
    "agreed",
    "confirm",
    "keep_owner",
    "receive",
    "trust_in",
    "vouch_for",
]

AGREEMENT = 2.0
"""Largest quotient of two speed-ups that confirm each other."""

NO_NUMBER = math.inf
"""Of others in quarantine: only a fact that is trusted confirms."""


@dataclass(frozen=True)
class Recording:
    """That somebody sent a fact to the service, and when."""

    recorder: str
    received_at: datetime


@dataclass(frozen=True)
class Trust:
    """Who stands behind a fact.

    Attributes:
        recordings: by name; none if it was recorded into the database itself.
        retractions: none unless it is believed no more.
    """

    id: str
    is_quarantined: bool
    recordings: tuple[Recording, ...]
    retractions: tuple[Retraction, ...] = ()


@dataclass(frozen=True)
class Witness:
    """A fact, as far as trust goes."""

    id: str
    speedup: float
    recorders: frozenset[str]
    is_quarantined: bool


def agreed(witnesses: Iterable[Witness], n_confirmations: float) -> tuple[str, ...]:
    """The facts of one claim that may leave quarantine.

    Args:
        witnesses: all facts with one recipe for one workload on one device.
        n_confirmations: how many others have to agree with a fact.

    >>> a = Witness("a", 3.0, frozenset({"ann"}), is_quarantined=True)
    >>> b = Witness("b", 3.5, frozenset({"bob"}), is_quarantined=True)
    >>> c = Witness("c", 99.0, frozenset({"eve"}), is_quarantined=True)
    >>> agreed([a, b, c], 1), agreed([a, b, c], 2)
    (('a', 'b'), ())
    """
    known = tuple(witnesses)

    def is_confirmed(fact: Witness) -> bool:
        agreeing = [one for one in known if _agree(one, fact)]
        others = frozenset(name for one in agreeing for name in one.recorders)
        n_others = len(others - fact.recorders) + max(0, len(fact.recorders) - 1)
        is_settled = any(not one.is_quarantined for one in agreeing)
        return is_settled or n_others >= n_confirmations

    return tuple(one.id for one in known if one.is_quarantined and is_confirmed(one))


def receive(
    connection: Connection,
    record: TuningRecord,
    recorder: str,
    n_confirmations: int,
) -> bool:
    """Keep a fact that somebody sent; whether it was new.

    Args:
        n_confirmations: how many others have to agree before it is served; 0 if
            the recorder is trusted.
    """
    if n_confirmations:
        _take_turns(connection, record)
    is_new = insert_missing_rows(connection, rows_of(record))
    if not is_new:
        keep_owner(connection, [record.id], is_sent=False)
    now = datetime.now(UTC)
    sent = {"record_id": record.id, "recorder": recorder, "received_at": now}
    insert_missing(connection, (RecordingRow, sent))
    if n_confirmations == 0:
        vouch_for(connection, [record])
        return is_new
    if is_new:
        waiting = {"record_id": record.id, "received_at": now}
        insert_missing(connection, (QuarantineRow, waiting))
    _release(connection, agreed(_witnesses(connection, record), n_confirmations))
    return is_new


def vouch_for(connection: Connection, records: Sequence[TuningRecord]) -> None:
    """Release facts that are trusted from now on, and those that agree with them."""
    if not _has_waiting(connection):
        return
    for record in records:
        _release(connection, [record.id])
        if _has_waiting(connection, record.workload):
            witnesses = _witnesses(connection, record)
            _release(connection, agreed(witnesses, NO_NUMBER))


def confirm(connection: Connection, record_id: str) -> None:
    """Release a fact on somebody's word, and those that agree with it.

    Raises:
        RecordNotFoundError: if there is no such fact, or if it is retracted.
    """
    wanted = RECORDS.where(RecordRow.id == record_id, ~RETRACTED)
    found = connection.execute(wanted).all()
    for record in sound_records(found):
        return vouch_for(connection, [record])
    raise RecordNotFoundError(f"no record has the id {record_id!r}")


def trust_in(connection: Connection, record_id: str) -> Trust:
    """Who stands behind a fact.

    Raises:
        RecordNotFoundError: if there is no such fact.
    """
    of_record = RecordRow.id == record_id
    found = connection.execute(select(WAITING).where(of_record)).scalar()
    if found is None:
        raise RecordNotFoundError(f"no record has the id {record_id!r}")
    recordings = connection.execute(
        select(RecordingRow.recorder, RecordingRow.received_at)
        .where(RecordingRow.record_id == record_id, RecordingRow.recorder != OWNER)
        .order_by(RecordingRow.received_at, RecordingRow.recorder)
    )
    known = tuple(Recording(*row) for row in recordings)
    retractions = find_retractions(connection, [record_id])
    return Trust(record_id, bool(found), known, retractions)


def keep_owner(
    connection: Connection, record_ids: Sequence[str], *, is_sent: bool
) -> None:
    """Note that facts are also in the database by the will of its owner.

    So a key that sends them, too, is not taken for the one that they are from.

    Args:
        is_sent: of the facts, whether those that somebody sent are meant, or those that
            nobody did.
    """
    sent = exists().where(RecordingRow.record_id == RecordRow.id)
    wanted = select(RecordRow.id).where(
        RecordRow.id.in_(record_ids), sent if is_sent else ~sent
    )
    now = datetime.now(UTC)
    for record_id in connection.scalars(wanted).all():
        own = {"record_id": record_id, "recorder": OWNER, "received_at": now}
        insert_missing(connection, (RecordingRow, own))


def _take_turns(connection: Connection, record: TuningRecord) -> None:
    """Let facts of a workload arrive one after the other, so that each sees all."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:workload, 0))")
        connection.execute(lock, {"workload": record.workload})


def _agree(one: Witness, other: Witness) -> bool:
    low, high = sorted((one.speedup, other.speedup))
    return high <= AGREEMENT * low


def _has_waiting(connection: Connection, workload: str | None = None) -> bool:
    """Whether any fact, or one of a workload, is in quarantine."""
    waiting = select(QuarantineRow.record_id)
    if workload is not None:
        waiting = waiting.join(
            RecordRow, RecordRow.id == QuarantineRow.record_id
        ).where(RecordRow.workload_key == workload)
    return connection.execute(waiting.limit(1)).first() is not None


def _witnesses(connection: Connection, record: TuningRecord) -> list[Witness]:
    """All facts with the recipe of a record, on its workload and device."""
    of_recipe = (
        RecordRow.workload_key == record.workload,
        RecordRow.device_id == record.environment.device.id,
        RecordRow.transform_name == record.spec.name,
        RecordRow.transform_version == record.spec.version,
    )
    trusted = set(connection.scalars(select(RecordRow.id).where(*of_recipe, TRUSTED)))
    recorders: dict[str, set[str]] = {}
    sent = select(RecordingRow.record_id, RecordingRow.recorder).join(
        RecordRow, RecordRow.id == RecordingRow.record_id
    )
    for record_id, recorder in connection.execute(sent.where(*of_recipe)):
        recorders.setdefault(record_id, set()).add(recorder)
    rows = connection.execute(RECORDS.where(*of_recipe, ~RETRACTED)).all()
    return [
        Witness(
            known.id,
            known.measurement.speedup,
            frozenset(recorders.get(known.id, ())),
            known.id not in trusted,
        )
        for known in sound_records(rows)
        if known.spec == record.spec
    ]


def _release(connection: Connection, record_ids: Iterable[str]) -> None:
    ids = list(record_ids)
    if ids:
        connection.execute(
            delete(QuarantineRow).where(QuarantineRow.record_id.in_(ids))
        )
