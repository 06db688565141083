"""The rule of trust: who sent a fact orders the answers, and clients check the rest.

- What is not schema-valid, not plausible or not of its key is refused when it is sent.
- A fact is *trusted* if a trusted key sent it, or if it was recorded in the database
  itself, as by ``feinsum tune``. Answers have the trusted facts first, then the others
  (:mod:`feinsum.service.answers`), and the seconds of a plan count only if trusted.
- A client verifies and times what was not measured on its machine before the first use
  (:mod:`feinsum.retrieval.kernel_trials`). So a false fact costs one trial there.
- An administrator retracts facts (:mod:`feinsum.db.sql.retracting`).
- Signatures are optional, and checked by clients that ask for them
  (:mod:`feinsum.records.signature`).

Who sent a fact is a row beside it, and no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, String, delete, literal, select

from feinsum.db.sql.retracting import find_ids, find_retractions
from feinsum.db.sql.rows import INSERTS, Row, insert_missing, split_ids
from feinsum.db.sql.tables import RecordingRow, RecordRow
from feinsum.errors import RecordNotFoundError
from feinsum.records import DevicePeaks, PlanRecord, Retraction, TuningRecord

Fact: TypeAlias = TuningRecord | PlanRecord | DevicePeaks

OWNER = ""
"""The recorder of a fact that the owner of the database recorded, too."""


@dataclass(frozen=True)
class Submission:
    """Who sent a fact to the service, and when."""

    recorder: str
    received_at: datetime


@dataclass(frozen=True)
class Trust:
    """The trust in a fact.

    Attributes:
        recordings: recordings by time; none if it was recorded directly in the
            database.
        retractions: its retractions, if any.
    """

    id: str
    is_trusted: bool
    recordings: tuple[Submission, ...]
    retractions: tuple[Retraction, ...] = ()


class Receipt(NamedTuple):
    """The outcome for a fact that was sent.

    Attributes:
        is_new: whether it was not stored yet.
        is_retracted: whether look-ups ignore it.
    """

    is_new: bool
    is_retracted: bool


def insert_received(
    connection: Connection,
    fact_id: str,
    rows: Iterable[Row],
    recorder: str,
    *,
    is_trusted: bool,
) -> Receipt:
    """Store the rows of a fact that somebody sent, and who sent it."""
    is_new = insert_missing(connection, rows) == 1
    if not is_new and not _find_sent(connection, [fact_id]):
        # The owner recorded it first, which the next row would hide.
        _insert_recorder(connection, [fact_id], OWNER, is_trusted=True)
    _insert_recorder(connection, [fact_id], recorder, is_trusted=is_trusted)
    return Receipt(is_new, bool(find_retractions(connection, [fact_id])))


def insert_owned(
    connection: Connection, fact_ids: Sequence[str], rows: Iterable[Row]
) -> int:
    """Store documents of the owner of the database; returns how many are new.

    The facts among them that others sent become trusted, and stay if what a recorder
    sent is retracted.
    """
    n_new = insert_missing(connection, rows)
    for part in split_ids(fact_ids):
        sent = _find_sent(connection, part)
        _insert_recorder(connection, sent, OWNER, is_trusted=True)
    return n_new


def insert_rekeyed(
    connection: Connection, record_id: str, rows: Sequence[Row], origin: str
) -> bool:
    """Insert a record, sent by whoever sent the record under its old key."""
    is_new = insert_missing(connection, rows) == 1
    if is_new:
        row = RecordingRow
        columns = row.recorder, row.received_at, row.is_trusted
        sent = select(literal(record_id, String), *columns)
        names = ["record_id", "recorder", "received_at", "is_trusted"]
        copies = sent.where(row.record_id == origin)
        connection.execute(row.__table__.insert().from_select(names, copies))
    return is_new


def delete_records(connection: Connection, ids: Collection[str]) -> int:
    """Delete records, and who sent them; returns their number."""
    n_removed = 0
    for chunk in split_ids(ids):
        connection.execute(
            delete(RecordingRow).where(RecordingRow.record_id.in_(chunk))
        )
        records = delete(RecordRow).where(RecordRow.id.in_(chunk))
        n_removed += len(connection.execute(records.returning(RecordRow.id)).all())
    return n_removed


def find_trust(connection: Connection, fact_id: str) -> Trust:
    """Return the trust in a fact.

    Raises:
        RecordNotFoundError: if there is no such fact.
    """
    if not find_ids(connection, [fact_id]):
        raise RecordNotFoundError(f"no record has the id {fact_id!r}")
    row = RecordingRow
    recordings = connection.execute(
        select(row.recorder, row.received_at, row.is_trusted)
        .where(row.record_id == fact_id)
        .order_by(row.received_at, row.recorder)
    ).all()
    # The owner is no sender; the row only says that the fact is trusted.
    return Trust(
        fact_id,
        not recordings or any(r.is_trusted for r in recordings),
        tuple(
            Submission(r.recorder, r.received_at)
            for r in recordings
            if r.recorder != OWNER
        ),
        find_retractions(connection, [fact_id]),
    )


def _find_sent(connection: Connection, fact_ids: Sequence[str]) -> Sequence[str]:
    """Return those facts that have a recorder."""
    row = RecordingRow
    sent = select(row.record_id).where(row.record_id.in_(fact_ids)).distinct()
    return connection.scalars(sent).all()


def _insert_recorder(
    connection: Connection,
    fact_ids: Sequence[str],
    recorder: str,
    *,
    is_trusted: bool,
) -> None:
    """Note who sent facts; a recorder who became trusted makes them trusted."""
    if not fact_ids:
        return
    insert = INSERTS[connection.dialect.name](RecordingRow.__table__)
    statement = insert.on_conflict_do_nothing()
    if is_trusted:
        statement = insert.on_conflict_do_update(
            index_elements=["record_id", "recorder"], set_={"is_trusted": True}
        )
    recording = {
        "recorder": recorder,
        "received_at": datetime.now(UTC),
        "is_trusted": is_trusted,
    }
    connection.execute(
        statement, [{"record_id": fact_id, **recording} for fact_id in fact_ids]
    )
