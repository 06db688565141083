"""Recordings, quarantine and verdicts are of plans, too: they refer to no table."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for table in ("recordings", "quarantine", "verdicts"):
        # SQLite cannot drop a constraint: batch mode copies the table without it
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_record_id_records", type_="foreignkey")
