"""Trust: who recorded a fact, and which facts are in quarantine.

A quarantined fact is in the database but in no look-up. Facts are compared if they make
the same claim: one recipe for one workload at the same sizes, on one device and driver,
or one plan on a fleet (:mod:`feinsum.db.server.claims`). A fact of an untimed plan
claims nothing and is served at once, since its steps were recounted. A fact is
*vouched for* if an operator accepted it, if a trusted recorder sent it, or if it was
recorded directly in the database. Other facts are released

- if facts of their claim are vouched for: if one of these claims at least as much, so
  that no answer changes;
- otherwise: if enough independent recorders observed at least as much, and most agree.

A recorder counts once, by the median of its facts, and never for itself; one of its
facts is released. A fact sent by several is a measurement of the first sender. Released
facts vouch for nothing, so tolerances do not accumulate: with n required confirmations,
n colluding recorders release nothing that claims more, by more than :data:`NOISE`, than
an independent one observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from typing import Literal, TypeAlias, cast

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select, text

from feinsum.db.server.claims import CLAIMS, Claims, Fact, claims_of
from feinsum.db.sql.retracting import KEPT, OWNER, KeptRow, find_retractions
from feinsum.db.sql.rows import rows_of
from feinsum.db.sql.statements import (
    ALL_PLANS,
    RECORDS,
    insert_missing,
    insert_missing_rows,
    retracted,
    sound,
    waiting,
)
from feinsum.db.sql.tables import QuarantineRow, RecordingRow, VerdictRow
from feinsum.errors import RecordNotFoundError, TooManyRequestsError
from feinsum.records import DevicePeaks, Retraction, is_apart

__all__ = [
    "AGREEMENT",
    "NOISE",
    "Recording",
    "Standing",
    "Trust",
    "Witness",
    "agreed",
    "confirm",
    "decide",
    "keep_owner",
    "keep_sent",
    "receive",
    "trust_in",
    "vouch_for",
]

AGREEMENT = 2.0
"""Largest quotient of two speed-ups that agree."""

MOST_WAITING = 500
"""How many facts of a workload one recorder may have in quarantine."""

NOISE = 1.05
"""By how much one that is released may claim more than others saw."""

Standing: TypeAlias = Literal["vouched", "served", "waiting", "rejected"]
"""Standing of a fact; one that is served but not vouched for confirms as others do."""


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
        is_rejected: whether an operator rejected it.
        retractions: its retractions, if any.
    """

    id: str
    is_quarantined: bool
    recordings: tuple[Recording, ...]
    is_rejected: bool = False
    retractions: tuple[Retraction, ...] = ()


@dataclass(frozen=True)
class Witness:
    """A fact, reduced to what trust depends on.

    Attributes:
        recorder: who sent it first; empty if nobody did.
        speedup, low, high: the speed-up and the ends of its interval; of a plan, runs
            per second.
    """

    id: str
    recorder: str
    speedup: float
    low: float
    high: float
    standing: Standing = "waiting"

    @property
    def claims(self) -> tuple[float, float, float]:
        """Everything by which facts are ranked."""
        return self.speedup, self.low, self.high

    def agrees(self, other: Witness) -> bool:
        """Whether both claim about the same."""
        low, high = sorted((self.speedup, other.speedup))
        return high <= AGREEMENT * low


def agreed(witnesses: Iterable[Witness], n_confirmations: int) -> tuple[str, ...]:
    """The facts of one claim that may leave quarantine.

    Args:
        n_confirmations: number of other recorders that must reach what a fact claims.

    >>> ann, bob = (Witness(name, name, 3.0, 2.9, 3.1) for name in ("ann", "bob"))
    >>> eve = Witness("eve", "eve", 99.0, 98.0, 100.0)
    >>> agreed([ann, bob, eve], 1), agreed([ann, bob, eve], 2)
    (('ann', 'bob'), ())
    """
    known = [one for one in witnesses if one.standing != "rejected"]
    vouched = [one for one in known if one.standing == "vouched"]

    def is_released(fact: Witness) -> bool:
        if vouched:
            return any(_is_within(fact, one) for one in vouched)
        return _is_reached(fact, known, n_confirmations)

    waiting = (one for one in known if one.standing == "waiting")
    shown = {one.recorder for one in known if one.standing == "served"}
    released = {
        one.recorder: one.id
        for one in waiting
        if one.recorder not in shown and is_released(one)
    }
    return tuple(released.values())


def _is_within(fact: Witness, other: Witness) -> bool:
    """Whether a fact agrees with another one, and claims nothing beyond it."""
    pairs = zip(fact.claims, other.claims, strict=True)
    return fact.agrees(other) and all(mine <= theirs for mine, theirs in pairs)


def _is_reached(fact: Witness, known: Sequence[Witness], n_others: int) -> bool:
    """Whether enough other recorders saw what a fact claims, and most agree."""
    others = [
        _typical([one for one in known if one.recorder == name])
        for name in {one.recorder for one in known} - {fact.recorder}
    ]
    agreeing = [one for one in others if one.agrees(fact)]
    n_against = len(others) - len(agreeing)
    # the recorder of the fact is one of those who agree
    if len(agreeing) < max(n_others, 1) or len(agreeing) + 1 <= n_against:
        return False
    seen = zip(*(one.claims for one in agreeing), strict=True)
    least = (nlargest(n_others, values)[-1] for values in seen)
    pairs = zip(fact.claims, least, strict=True)
    return all(claim <= NOISE * reached for claim, reached in pairs)


def _typical(facts: Sequence[Witness]) -> Witness:
    """The median of the facts of one recorder; of two, the one that claims less."""
    ordered = sorted(facts, key=lambda one: (one.speedup, one.id))
    return ordered[(len(ordered) - 1) // 2]


def receive(
    connection: Connection,
    record: Fact,
    recorder: str,
    n_confirmations: int,
    *,
    is_trusted: bool = False,
) -> bool:
    """Store a fact that somebody sent; returns whether it was new.

    Args:
        n_confirmations: number of others that must agree before it is served, if the
            recorder is not trusted; 0 serves it at once.

    Raises:
        TooManyRequestsError: if the recorder already has :data:`MOST_WAITING` facts of
            the workload in quarantine.
    """
    _take_turns(connection, record)
    if claims_of(record).amount(record) is None:
        n_confirmations = 0
    if n_confirmations and not is_trusted:
        _check_waiting(connection, recorder, record)
    is_new = keep_sent(connection, record, recorder, is_trusted=is_trusted)
    if is_trusted:
        vouch_for(connection, [record])
    elif n_confirmations:
        if is_new:
            waiting = {"record_id": record.id, "received_at": datetime.now(UTC)}
            insert_missing(connection, (QuarantineRow, waiting))
        _release(connection, _agreed_with(connection, record, n_confirmations))
    return is_new


def keep_sent(
    connection: Connection,
    document: Fact | DevicePeaks,
    recorder: str,
    *,
    is_trusted: bool,
) -> bool:
    """Store a document, and who sent it; returns whether it was new."""
    is_new = insert_missing_rows(connection, rows_of(document))
    if not is_new:
        keep_owner(connection, [document.id], is_sent=False)
    sent = {
        "record_id": document.id,
        "recorder": recorder,
        "received_at": datetime.now(UTC),
        "is_trusted": is_trusted,
    }
    insert_missing(connection, (RecordingRow, sent))
    return is_new


def vouch_for(connection: Connection, records: Iterable[Fact]) -> None:
    """Release facts that are now trusted, and those that claim no more.

    Facts that an operator rejected are unaffected.
    """
    if not _has_waiting(connection):
        return
    for record in records:
        if _verdict(connection, record.id) is False:
            continue
        if _is_waiting(connection, record.id):
            _decide(connection, record.id, is_accepted=True)
            _release(connection, [record.id])
        if _has_waiting(connection, record):
            _release(connection, _agreed_with(connection, record, 1))


def confirm(connection: Connection, record_id: str) -> None:
    """Accept a fact on somebody's word, and release those that claim no more.

    Raises:
        RecordNotFoundError: if there is no such fact, or if it is retracted.
    """
    if trust_in(connection, record_id).retractions:
        raise RecordNotFoundError(f"the record {record_id!r} is retracted")
    decide(connection, [record_id], is_accepted=True)


def decide(
    connection: Connection, record_ids: Sequence[str], *, is_accepted: bool
) -> None:
    """Accept facts and release those that claim no more, or reject them."""
    for record_id in record_ids:
        _decide(connection, record_id, is_accepted=is_accepted)
        if not is_accepted:
            waiting = {"record_id": record_id, "received_at": datetime.now(UTC)}
            insert_missing(connection, (QuarantineRow, waiting))
            continue
        _release(connection, [record_id])
        for claims in CLAIMS.values():
            found = _sound(connection, claims, claims.row.id == record_id)
            vouch_for(connection, list(found))


def trust_in(connection: Connection, record_id: str) -> Trust:
    """The trust in a fact.

    Raises:
        RecordNotFoundError: if there is no such fact.
    """
    if not any(_kept(connection, row, [record_id]) for row in KEPT):
        raise RecordNotFoundError(f"no record has the id {record_id!r}")
    recordings = connection.execute(
        select(RecordingRow.recorder, RecordingRow.received_at)
        .where(RecordingRow.record_id == record_id, RecordingRow.recorder != OWNER)
        .order_by(RecordingRow.received_at, RecordingRow.recorder)
    )
    sent = tuple(Recording(*row) for row in recordings)
    is_rejected = _verdict(connection, record_id) is False
    retractions = find_retractions(connection, [record_id])
    is_waiting = _is_waiting(connection, record_id)
    return Trust(record_id, is_waiting, sent, is_rejected, retractions)


def keep_owner(
    connection: Connection, record_ids: Sequence[str], *, is_sent: bool
) -> None:
    """Note that the owner of the database added facts too.

    So a key that also sends them is not considered their origin.

    Args:
        is_sent: of the facts, whether those that somebody sent are meant, or those that
            nobody did.
    """
    kept = [
        record_id
        for row in KEPT
        for record_id in _kept(connection, row, record_ids, is_sent=is_sent)
    ]
    now = datetime.now(UTC)
    for record_id in kept:
        own = {
            "record_id": record_id,
            "recorder": OWNER,
            "received_at": now,
            "is_trusted": True,
        }
        insert_missing(connection, (RecordingRow, own))


def _kept(
    connection: Connection,
    row: KeptRow,
    ids: Sequence[str],
    *,
    is_sent: bool | None = None,
) -> Sequence[str]:
    """Those ids that are in a table; only those that somebody sent, or nobody did."""
    wanted = select(row.id).where(row.id.in_(ids))
    if is_sent is not None:
        sent = exists().where(RecordingRow.record_id == row.id)
        wanted = wanted.where(sent if is_sent else ~sent)
    return connection.scalars(wanted).all()


def _take_turns(connection: Connection, record: Fact) -> None:
    """Let facts of a workload arrive one after the other, so that each sees all."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        # equal hashes of two workloads only make them wait; the statements that follow
        # see what the one before committed, since they are READ COMMITTED
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:workload, 0))")
        connection.execute(lock, {"workload": record.workload})


def _has_waiting(connection: Connection, record: Fact | None = None) -> bool:
    """Whether any fact, or one of the workload of a fact, is in quarantine."""
    found = select(QuarantineRow.record_id)
    if record is not None:
        row = claims_of(record).row
        found = found.join(row, row.id == QuarantineRow.record_id)
        found = found.where(row.workload_key == record.workload)
    return connection.execute(found.limit(1)).first() is not None


def _check_waiting(connection: Connection, recorder: str, record: Fact) -> None:
    """Refuse a recorder who has very many facts of a workload in quarantine.

    For each that arrives is compared with all of its claim.
    """
    row = claims_of(record).row
    found = (
        select(func.count())
        .select_from(RecordingRow)
        .join(QuarantineRow, QuarantineRow.record_id == RecordingRow.record_id)
        .join(row, row.id == RecordingRow.record_id)
        .where(RecordingRow.recorder == recorder, row.workload_key == record.workload)
    )
    n_waiting = connection.execute(found).scalar() or 0
    if n_waiting >= MOST_WAITING:
        raise TooManyRequestsError(
            f"{n_waiting} facts of {recorder!r} of this workload are in quarantine, "
            f"expected fewer than {MOST_WAITING}; ask the operator to accept them"
        )


def _is_waiting(connection: Connection, record_id: str) -> bool:
    found = select(QuarantineRow.record_id).where(QuarantineRow.record_id == record_id)
    return connection.execute(found).first() is not None


def _verdict(connection: Connection, record_id: str) -> bool | None:
    """The verdict on a fact; None if there is none."""
    verdict = select(VerdictRow.is_accepted).where(VerdictRow.record_id == record_id)
    return connection.execute(verdict).scalar()


def _decide(connection: Connection, record_id: str, *, is_accepted: bool) -> None:
    """Write a verdict in place of an earlier one."""
    connection.execute(delete(VerdictRow).where(VerdictRow.record_id == record_id))
    now = datetime.now(UTC)
    row = {"record_id": record_id, "is_accepted": is_accepted, "decided_at": now}
    insert_missing(connection, (VerdictRow, row))


def _agreed_with(
    connection: Connection, record: Fact, n_confirmations: int
) -> tuple[str, ...]:
    """Facts with the claim of a record that may leave quarantine; see :func:`agreed`.

    Only an operator releases facts that this installation cannot judge.
    """
    if is_apart(record):
        return ()
    return agreed(_witnesses(connection, record), n_confirmations)


def _sound(
    connection: Connection, claims: Claims, *conditions: ColumnElement[bool]
) -> Iterator[Fact]:
    """The valid facts of a kind that are not retracted, in quarantine or not."""
    wanted = {"record": RECORDS, "plan": ALL_PLANS}[claims.kind]
    rows = connection.execute(wanted.where(*conditions, ~retracted(claims.row))).all()
    return cast(Iterator[Fact], sound(claims.kind, rows))


def _witnesses(connection: Connection, record: Fact) -> list[Witness]:
    """All facts of the claim of a record."""
    claims = claims_of(record)
    row, alike = claims.row, claims.alike(record)
    served = ~waiting(row) & ~retracted(row)
    trusted = set(connection.scalars(select(row.id).where(*alike, served)))
    sent: dict[str, list[tuple[str, bool]]] = {}
    recordings = (
        select(RecordingRow.record_id, RecordingRow.recorder, RecordingRow.is_trusted)
        .join(row, row.id == RecordingRow.record_id)
        .where(*alike)
        .order_by(RecordingRow.received_at, RecordingRow.recorder)
    )
    for record_id, recorder, is_trusted in connection.execute(recordings):
        sent.setdefault(record_id, []).append((recorder, is_trusted))
    verdicts = select(VerdictRow.record_id, VerdictRow.is_accepted).join(
        row, row.id == VerdictRow.record_id
    )
    found = connection.execute(verdicts.where(*alike))
    decided = {record_id: is_accepted for record_id, is_accepted in found}  # noqa: C416
    return [
        _witness(
            known.id,
            amount,
            sent.get(known.id, []),
            decided.get(known.id),
            is_served=known.id in trusted,
        )
        for known in _sound(connection, claims, *alike)
        if claims.subject(known) == claims.subject(record)
        and (amount := claims.amount(known)) is not None
    ]


def _witness(
    record_id: str,
    amount: tuple[float, float, float],
    sent: Sequence[tuple[str, bool]],
    verdict: bool | None,
    *,
    is_served: bool,
) -> Witness:
    is_ours = not sent or any(
        is_trusted or recorder == OWNER for recorder, is_trusted in sent
    )
    standing: Standing = "served" if is_served else "waiting"
    if verdict is False:
        standing = "rejected"
    elif verdict or (is_served and is_ours):
        standing = "vouched"
    recorder = sent[0][0] if sent else ""
    return Witness(record_id, recorder, *amount, standing)


def _release(connection: Connection, record_ids: Iterable[str]) -> None:
    ids = list(record_ids)
    if ids:
        connection.execute(
            delete(QuarantineRow).where(QuarantineRow.record_id.in_(ids))
        )
