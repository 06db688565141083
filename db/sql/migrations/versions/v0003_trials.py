"""Table of trials, good and bad, from which a tuning goes on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "trials",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("workload_key", sa.Text, nullable=False),
        sa.Column("device_id", sa.String(64), nullable=False),
        sa.Column("driver_version", sa.String, nullable=False),
        sa.Column("transform_name", sa.String, nullable=False),
        sa.Column("transform_version", sa.Integer, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("median_s", sa.Double, nullable=True),
        sa.Column("ratio", sa.Double, nullable=True),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name="fk_trials_device_id_devices"
        ),
    )
    for column in ("workload_key", "device_id"):
        op.create_index(f"ix_trials_{column}", "trials", [column])
