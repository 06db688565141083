"""Facts do not wait any more: what waited is untrusted, what was accepted is trusted.

An operator's rejection becomes a retraction, so that no rejected fact comes back. Every
fact and plan stays.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from feinsum.records import Retraction, to_json

revision = "0011"
down_revision = "0010"

REASON = "rejected by the operator, before quarantine was removed"

UNTRUST = """
UPDATE recordings SET is_trusted = FALSE
WHERE record_id IN (SELECT record_id FROM quarantine)
"""

ATTRIBUTE = """
INSERT INTO recordings (record_id, recorder, received_at, is_trusted)
SELECT record_id, 'anonymous', received_at, FALSE FROM quarantine
WHERE record_id NOT IN (SELECT record_id FROM recordings)
"""
"""A fact without a recorder would be taken for one that was recorded here."""

TRUST = """
UPDATE recordings SET is_trusted = TRUE
WHERE record_id IN (SELECT record_id FROM verdicts WHERE is_accepted)
"""

REJECTED = """
SELECT record_id, decided_at FROM verdicts
WHERE NOT is_accepted
AND record_id NOT IN (SELECT document_id FROM retractions)
"""

RETRACTIONS = sa.table(
    "retractions",
    sa.column("id"),
    sa.column("document_id"),
    sa.column("retracted_by"),
    sa.column("retracted_at", sa.DateTime(timezone=True)),
    sa.column("document"),
)


def upgrade() -> None:
    # In this order: an accepted fact that was still waiting is trusted in the end.
    op.execute(UNTRUST)
    op.execute(ATTRIBUTE)
    op.execute(TRUST)
    retract_rejected()
    op.drop_table("quarantine")
    op.drop_table("verdicts")


def retract_rejected() -> None:
    decided = sa.text(REJECTED).columns(
        record_id=sa.String, decided_at=sa.DateTime(timezone=True)
    )
    rows = []
    for record_id, decided_at in op.get_bind().execute(decided):
        # SQLite has no time zones; what is stored is UTC
        at = decided_at if decided_at.tzinfo else decided_at.replace(tzinfo=UTC)
        at = at.astimezone(UTC).replace(microsecond=0)
        retraction = Retraction(record_id, REASON, "operator", at.isoformat())
        rows.append(
            {
                "id": retraction.id,
                "document_id": record_id,
                "retracted_by": retraction.retracted_by,
                "retracted_at": datetime.fromisoformat(retraction.retracted_at),
                "document": to_json(retraction),
            }
        )
    if rows:
        op.bulk_insert(RETRACTIONS, rows)
