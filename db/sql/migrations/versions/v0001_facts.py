"""Tables of devices, environments, workloads and tuning records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from feinsum.db.sql.sqlite_file import APPLICATION_ID

revision = "0001"
down_revision = None

CONTENT_ID = sa.String(64)


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        # marks the file as ours in its header
        op.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    create_devices_and_environments()
    op.create_table(
        "workloads",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_workloads"),
    )
    create_records()


def create_devices_and_environments() -> None:
    op.create_table(
        "devices",
        sa.Column("id", CONTENT_ID, nullable=False),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("platform", "name", "vendor", "kind", "architecture")
        ),
        sa.Column("compute_units", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
    )
    op.create_table(
        "environments",
        sa.Column("id", CONTENT_ID, nullable=False),
        sa.Column("device_id", CONTENT_ID, nullable=False),
        sa.Column("driver_version", sa.String, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environments"),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name="fk_environments_device_id_devices"
        ),
    )
    op.create_index("ix_environments_device_id", "environments", ["device_id"])


def create_records() -> None:
    references = {
        "workload_key": "workloads.key",
        "environment_id": "environments.id",
        "device_id": "devices.id",
    }
    op.create_table(
        "records",
        sa.Column("id", CONTENT_ID, nullable=False),
        sa.Column("workload_key", sa.Text, nullable=False),
        sa.Column("environment_id", CONTENT_ID, nullable=False),
        sa.Column("device_id", CONTENT_ID, nullable=False),
        sa.Column("transform_name", sa.String, nullable=False),
        sa.Column("transform_version", sa.Integer, nullable=False),
        sa.Column("median_s", sa.Double, nullable=False),
        sa.Column("speedup", sa.Double, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_records"),
        *(
            sa.ForeignKeyConstraint(
                [column], [target], name=f"fk_records_{column}_{target.split('.')[0]}"
            )
            for column, target in references.items()
        ),
    )
    for columns in (
        ["workload_key", "device_id"],
        ["environment_id"],
        ["device_id"],
        ["transform_name", "transform_version"],
        ["recorded_at"],
    ):
        op.create_index(f"ix_records_{'_'.join(columns)}", "records", columns)
