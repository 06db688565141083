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

    done = migrate(database)
    if as_json:
        print_json({"database": done.location, "from": done.before, "to": done.after})
    elif done.before == done.after:
        typer.echo(f"{done.location}: schema {done.after} is up to date")
    else:
        typer.echo(
            f"{done.location}: upgraded from schema {done.before} to {done.after}"
        )
