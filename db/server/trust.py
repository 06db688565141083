"""The rule of trust: who sent a fact orders the answers, and clients check the rest.

- What is not schema-valid, not plausible or not of its key is refused when it is sent.
- A fact is *trusted* if a trusted key sent it, or if it was recorded in the database
  itself, as by ``feinsum tune``. Answers have the trusted facts first, then the others
  (:mod:`feinsum.service.answers`), and the seconds of a plan count only if trusted.
- A client verifies and times what was not measured on its machine before the first use
  (:mod:`feinsum.retrieval.trust`). So a false fact costs one trial there.
- An administrator retracts facts (:mod:`feinsum.db.sql.retracting`).
- Signatures are optional, and checked by clients that ask for them
  (:mod:`feinsum.records.signature`).

Who sent a fact is a row beside it, and no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, exists, select

from feinsum.db.sql.retracting import KEPT, OWNER, find_retractions
from feinsum.db.sql.rows import Row
from feinsum.db.sql.statements import INSERTS, insert_missing_rows
from feinsum.db.sql.tables import RecordingRow
from feinsum.errors import RecordNotFoundError
from feinsum.records import DevicePeaks, PlanRecord, Retraction, TuningRecord

Fact: TypeAlias = TuningRecord | PlanRecord | DevicePeaks

AT_ONCE = 500
"""How many ids are asked for in one statement."""


@dataclass(frozen=True)
class Recording:
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
    recordings: tuple[Recording, ...]
    retractions: tuple[Retraction, ...] = ()


class Receipt(NamedTuple):
    """The outcome for a fact that was sent.

    Attributes:
        is_new: whether it was not stored yet.
        is_retracted: whether look-ups ignore it.
    """

    is_new: bool
    is_retracted: bool


def receive(
    connection: Connection,
    fact_id: str,
    rows: Sequence[Row],
    recorder: str,
    *,
    is_trusted: bool,
) -> Receipt:
    """Store the rows of a fact, and who sent it."""
    is_new = insert_missing_rows(connection, rows)
    if not is_new and not _sent(connection, [fact_id]):
        _keep_recorder(connection, [fact_id], OWNER, is_trusted=True)
    _keep_recorder(connection, [fact_id], recorder, is_trusted=is_trusted)
    return Receipt(is_new, bool(find_retractions(connection, [fact_id])))


def keep_owner(connection: Connection, fact_ids: Sequence[str]) -> None:
    """Note that the owner of the database recorded facts, too, where others sent them.

    So the facts are trusted, and stay if what a recorder sent is retracted.
    """
    for first in range(0, len(fact_ids), AT_ONCE):
        sent = _sent(connection, fact_ids[first : first + AT_ONCE])
        _keep_recorder(connection, sent, OWNER, is_trusted=True)


def trust_in(connection: Connection, fact_id: str) -> Trust:
    """The trust in a fact.

    Raises:
        RecordNotFoundError: if there is no such fact.
    """
    is_stored = (select(exists().where(row.id == fact_id)) for row in KEPT)
    if not any(connection.scalar(one) for one in is_stored):
        raise RecordNotFoundError(f"no record has the id {fact_id!r}")
    row = RecordingRow
    sent = connection.execute(
        select(row.recorder, row.received_at, row.is_trusted)
        .where(row.record_id == fact_id)
        .order_by(row.received_at, row.recorder)
    ).all()
    return Trust(
        fact_id,
        not sent or any(one.is_trusted for one in sent),
        tuple(Recording(*one[:2]) for one in sent if one.recorder != OWNER),
        find_retractions(connection, [fact_id]),
    )


def _sent(connection: Connection, fact_ids: Sequence[str]) -> Sequence[str]:
    """Those facts that have a recorder."""
    row = RecordingRow
    found = select(row.record_id).where(row.record_id.in_(fact_ids)).distinct()
    return connection.scalars(found).all()


def _keep_recorder(
    connection: Connection,
    fact_ids: Sequence[str],
    recorder: str,
    *,
    is_trusted: bool,
) -> None:
    """Note who sent facts; one that is trusted meanwhile makes them trusted."""
    if not fact_ids:
        return
    insert = INSERTS[connection.dialect.name](RecordingRow.__table__)
    names = ["record_id", "recorder"]
    kept = insert.on_conflict_do_nothing()
    if is_trusted:
        changed = {"is_trusted": True}
        kept = insert.on_conflict_do_update(index_elements=names, set_=changed)
    sent = {
        "recorder": recorder,
        "received_at": datetime.now(UTC),
        "is_trusted": is_trusted,
    }
    connection.execute(kept, [{"record_id": fact_id, **sent} for fact_id in fact_ids])
