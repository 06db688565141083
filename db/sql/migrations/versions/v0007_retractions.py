"""The table of retractions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "retractions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("document_id", sa.String(64), nullable=False),
        sa.Column("retracted_by", sa.String, nullable=False),
        sa.Column("retracted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_retractions"),
    )
    op.create_index("ix_retractions_document_id", "retractions", ["document_id"])
    op.create_index("ix_retractions_retracted_at", "retractions", ["retracted_at"])
