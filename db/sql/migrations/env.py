"""Alembic's entry: run the revisions on the connection that was handed over."""

from __future__ import annotations

from alembic import context

from feinsum.db.sql.sqlite_file import VERSION_TABLE
from feinsum.db.sql.tables import Base


def migrate() -> None:
    """Run the revisions asked for, in the transaction that is open already."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # the name under which Alembic runs this file
    migrate()
