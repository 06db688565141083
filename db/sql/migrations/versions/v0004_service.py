"""Tables of the service: recordings, quarantine, demands, API keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    create_trust()
    create_demands()
    create_api_keys()


def create_trust() -> None:
    op.create_table(
        "recordings",
        sa.Column("record_id", sa.String(64), nullable=False),
        sa.Column("recorder", sa.String, nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("record_id", "recorder", name="pk_recordings"),
        of_record("recordings"),
    )
    op.create_table(
        "quarantine",
        sa.Column("record_id", sa.String(64), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("record_id", name="pk_quarantine"),
        of_record("quarantine"),
    )


def of_record(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["record_id"],
        ["records.id"],
        name=f"fk_{table}_record_id_records",
        ondelete="CASCADE",
    )


def create_demands() -> None:
    op.create_table(
        "demands",
        sa.Column("workload_key", sa.Text, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("workload_text", sa.Text, nullable=True),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("workload_key", "device", name="pk_demands"),
    )
    op.create_index("ix_demands_count", "demands", ["count"])


def create_api_keys() -> None:
    op.create_table(
        "api_keys",
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("id", "name", "scope")
        ),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
