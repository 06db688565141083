"""``feinsum db backup``, ``feinsum db migrate`` and ``feinsum db sign``."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import print_json
from feinsum.words import counted

BACKUP_EXAMPLES = """\b
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

    # Read-only: a backup must work from an account that may not write.
    with open_store(database, is_read_only=True) as store:
        copy = back_up_store(store, file)
        form = "JSON Lines" if store.path is None else "SQLite"
    if as_json:
        print_json(
            {"file": str(copy), "format": form, "size_bytes": copy.stat().st_size}
        )
    else:
        typer.echo(f"{copy}: {form}, {counted(copy.stat().st_size, 'byte')}")


MIGRATE_EXAMPLES = """\b
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


SIGN_EXAMPLES = """\b
Examples:
  feinsum db sign --key signing.pem
  feinsum db sign --key signing.pem --write
"""


def sign(
    key: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            envvar="FEINSUM_SIGNING_KEY",
            show_envvar=False,
            help="File of the private key. Default: FEINSUM_SIGNING_KEY.",
            show_default=False,
        ),
    ],
    write: Write = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Sign the facts of a database that this key has not signed.

    A signed fact is a new fact; the one without this signature is retracted. Sign what
    you measured: a signature vouches for it. Facts that an untrusted key sent to a
    service are left alone.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import sign_facts
    from feinsum.records.signature import public_key_of, read_signing_key

    private = read_signing_key(key)  # first: a wrong file opens no database
    with open_store(database, may_create=False) as store:
        by = getpass.getuser()
        outcome = sign_facts(store, private, retracted_by=by, is_dry_run=not write)
    document = {
        "public_key": public_key_of(private),
        "n_records": outcome.n_records,
        "n_signed": outcome.n_signed,
        "is_written": write,
    }
    if as_json:
        print_json(document)
        return
    n_before = outcome.n_records - outcome.n_signed
    typer.echo(f"{counted(n_before, 'fact')} are already signed with this key")
    if write:
        typer.echo(f"facts signed: {outcome.n_signed}, by {document['public_key']}")
    else:
        typer.echo(
            f"facts to sign: {outcome.n_signed}; nothing was written; use --write"
        )
