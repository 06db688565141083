"""Whether recorders are trusted, and what operators decided about facts.

Facts that administrators sent before count as trusted, and those of other keys do not:
they are served as before, and confirm nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for table in ("api_keys", "recordings"):
        op.add_column(
            table,
            sa.Column(
                "is_trusted", sa.Boolean, nullable=False, server_default=sa.false()
            ),
        )
    # by name: recordings know the recorder, not the key
    op.execute(
        "UPDATE recordings SET is_trusted = TRUE WHERE recorder IN "
        "(SELECT name FROM api_keys WHERE scope = 'admin')"
    )
    op.create_table(
        "verdicts",
        sa.Column("record_id", sa.String(64), nullable=False),
        sa.Column("is_accepted", sa.Boolean, nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("record_id", name="pk_verdicts"),
        sa.ForeignKeyConstraint(
            ["record_id"],
            ["records.id"],
            name="fk_verdicts_record_id_records",
            ondelete="CASCADE",
        ),
    )
