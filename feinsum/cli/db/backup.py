"""``feinsum db backup``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json
from feinsum.words import counted

EXAMPLES = """\b
Examples:
  feinsum db backup facts-of-monday.sqlite
  feinsum db backup facts.jsonl --database postgresql://ada@host/facts
"""


def backup(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A new file; for a database on a server, .jsonl is appended to its "
            "name if missing.",
            show_default=False,
        ),
    ],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Copy a whole database to a new file, even while others write to it.

    The copy of an SQLite database is an SQLite database that can replace it. A
    database on a server is written as JSON Lines, for 'feinsum db import'.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import back_up_store

    with open_store(database, is_read_only=True) as store:
        copy = back_up_store(store, file)
        form = "JSON Lines" if store.path is None else "SQLite"
    if as_json:
        print_json(
            {"file": str(copy), "format": form, "size_bytes": copy.stat().st_size}
        )
    else:
        typer.echo(f"{copy}: {form}, {counted(copy.stat().st_size, 'byte')}")
