"""Columns of devices for their processors; empty for all that was recorded before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    # Facts stay as they are: their documents have no processor, nor have their ids.
    op.add_column("devices", sa.Column("microarchitecture", sa.String, nullable=True))
    op.add_column("devices", sa.Column("processor", sa.Text, nullable=True))
