"""``feinsum db migrate``."""

from __future__ import annotations

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json

EXAMPLES = """\b
Examples:
  feinsum db migrate
  feinsum db migrate --database team.sqlite
"""


def migrate(database: Database = None, as_json: AsJson = False) -> None:
    """Upgrade a database of an older feinsum to the newest schema.

    An SQLite file is first copied to the same folder. Commands that only read refuse
    an older database; those that record upgrade it too.
    """
    from feinsum.db.sql import migrate

    migration = migrate(database)
    location, before, after = migration.location, migration.before, migration.after
    if as_json:
        print_json({"database": location, "from": before, "to": after})
    elif before == after:
        typer.echo(f"{location}: schema {after} is up to date")
    else:
        typer.echo(f"{location}: upgraded from schema {before} to {after}")
