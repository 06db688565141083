"""The table of plans."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("workload_key", sa.Text, nullable=False),
        sa.Column("plan_id", sa.String(64), nullable=False),
        sa.Column("device_id", sa.String(64), nullable=False),
        sa.Column("processes", sa.Integer, nullable=False),
        sa.Column("engine", sa.String, nullable=False),
        sa.Column("median_s", sa.Double),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name="fk_plans_device_id_devices"
        ),
    )
    for column in ("workload_key", "device_id", "recorded_at"):
        op.create_index(f"ix_plans_{column}", "plans", [column])
