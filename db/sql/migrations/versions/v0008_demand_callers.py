"""Who asked for what is in demand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # Earlier demands count as those of one caller: nobody knows better.
    n_callers = sa.Column("n_callers", sa.Integer, nullable=False, server_default="1")
    op.add_column("demands", n_callers)
    op.create_table(
        "demand_callers",
        sa.Column("workload_key", sa.Text, nullable=False),
        sa.Column("device", sa.String, nullable=False),
        sa.Column("caller", sa.String, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint(
            "workload_key", "device", "caller", name="pk_demand_callers"
        ),
    )
    op.create_index("ix_demand_callers_caller", "demand_callers", ["caller"])
