"""Table of the measured limits of devices, for rooflines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "device_peaks",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("device_id", sa.String(64), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("bandwidth_bytes_per_s", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_device_peaks"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name="fk_device_peaks_device_id_devices"
        ),
    )
    op.create_index("ix_device_peaks_device_id", "device_peaks", ["device_id"])
