"""Recorders: what they sent, its state, and decisions about all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, exists, func, select

from feinsum.db.server.trust import decide
from feinsum.db.sql.retracting import OWNER
from feinsum.db.sql.tables import (
    ApiKeyRow,
    QuarantineRow,
    RecordingRow,
    RecordRow,
    RetractionRow,
    VerdictRow,
)

__all__ = ["Judged", "Reputation", "judge_recorder", "reputations"]


@dataclass(frozen=True)
class Reputation:
    """The state of the facts sent under one name, of plans too.

    Attributes:
        is_trusted: whether an unrevoked key with that name is trusted.
        n_sent: number of facts, of which ``n_served`` are in look-ups, ``n_waiting`` in
            quarantine, and ``n_rejected`` rejected.
        n_accepted: number accepted by an operator.
        best_speedup: the highest speed-up claimed; 0 if only plans were sent.
    """

    recorder: str
    is_trusted: bool
    n_sent: int
    n_served: int
    n_waiting: int
    n_rejected: int
    n_accepted: int
    best_speedup: float
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class Judged:
    """The facts of one recorder affected by a decision.

    Attributes:
        is_accepted: whether they are accepted, otherwise rejected.
        ids: sorted ids of the facts that the decision changes.
        n_decided: number of facts already decided this way.
    """

    recorder: str
    is_accepted: bool
    ids: tuple[str, ...]
    n_decided: int


IS_WAITING = QuarantineRow.record_id.is_not(None)
IS_REJECTED = VerdictRow.is_accepted.is_(False)
IS_ACCEPTED = VerdictRow.is_accepted.is_(True)
IS_RETRACTED = exists().where(RetractionRow.document_id == RecordingRow.record_id)


def reputations(connection: Connection) -> tuple[Reputation, ...]:
    """All senders of facts, by name."""
    trusted = select(ApiKeyRow.name).where(
        ApiKeyRow.revoked_at.is_(None),
        ApiKeyRow.is_trusted | (ApiKeyRow.scope == "admin"),
    )
    names = frozenset(connection.scalars(trusted))
    found = (
        select(
            RecordingRow.recorder,
            func.count(),
            _number(QuarantineRow.record_id.is_(None) & ~IS_RETRACTED),
            _number(IS_WAITING & VerdictRow.record_id.is_(None) & ~IS_RETRACTED),
            _number(IS_REJECTED),
            _number(IS_ACCEPTED),
            func.coalesce(func.max(RecordRow.speedup), 0.0),
            func.min(RecordingRow.received_at),
            func.max(RecordingRow.received_at),
        )
        .outerjoin(RecordRow, RecordRow.id == RecordingRow.record_id)
        .outerjoin(QuarantineRow, QuarantineRow.record_id == RecordingRow.record_id)
        .outerjoin(VerdictRow, VerdictRow.record_id == RecordingRow.record_id)
        .where(RecordingRow.recorder != OWNER)
        .group_by(RecordingRow.recorder)
        .order_by(RecordingRow.recorder)
    )
    rows: Iterable[Any] = connection.execute(found)
    return tuple(Reputation(name, name in names, *rest) for name, *rest in rows)


def judge_recorder(
    connection: Connection,
    recorder: str,
    since: datetime,
    *,
    is_accepted: bool,
    is_dry: bool,
) -> Judged:
    """Accept or reject all facts that a recorder sent since a time.

    This includes facts that others sent too, since each is one measurement.

    Args:
        is_dry: only return which facts these are.
    """
    sent = (
        select(RecordingRow.record_id, VerdictRow.is_accepted)
        .outerjoin(VerdictRow, VerdictRow.record_id == RecordingRow.record_id)
        .where(RecordingRow.recorder == recorder, RecordingRow.received_at >= since)
        .order_by(RecordingRow.record_id)
    )
    found = connection.execute(sent).all()
    ids = tuple(record_id for record_id, verdict in found if verdict is not is_accepted)
    if not is_dry:
        decide(connection, ids, is_accepted=is_accepted)
    return Judged(recorder, is_accepted, ids, len(found) - len(ids))


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    """How many rows of a group meet a condition."""
    return func.sum(case((condition, 1), else_=0))
