"""``feinsum db init``, ``migrate``, ``backup`` and ``gc``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import ID_LENGTH, print_document, print_table
from feinsum.cli.shared.progress import count_items, show_count
from feinsum.words import format_count as in_words

if TYPE_CHECKING:
    from feinsum.db.exchange import Collected, GarbagePlan, Rekeyed
    from feinsum.db.sql import Migration

INIT_EXAMPLES = """\b
Examples:
  feinsum db init
  feinsum db init --database postgresql://ada@host/facts
"""


def init(database: Database = None, as_json: AsJson = False) -> None:
    """Create a database without facts; one that exists stays as it is.

    Only its owner can read a new file. Commands that record facts create the user's
    own database if it is missing.
    """
    from feinsum.db.server import open_serving_store

    with open_serving_store(database) as store:
        location = str(store.location)
    print_document({"database": location}, as_json, lambda: typer.echo(location))


MIGRATE_EXAMPLES = """\b
Examples:
  feinsum db migrate
  feinsum db migrate --database team.sqlite
"""


def migrate(database: Database = None, as_json: AsJson = False) -> None:
    """Upgrade a database of an older feinsum: its schema, and its keys.

    An SQLite file is first copied to the same folder if its schema is older. Facts and
    trials under keys of an older canonical form are added again under current keys.
    Exits with code 1 if the einsum of any cannot be read.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import rekey
    from feinsum.db.sql import migrate

    migration = migrate(database)
    with (
        open_store(database, may_create=False) as store,
        show_count("adding ...") as step,
    ):
        rekeyed = rekey(store, step)
    unreadable = [
        {"key": left.key, "code": left.problem.code, "message": str(left.problem)}
        for left in rekeyed.unreadable
    ]
    document = {
        "database": migration.location,
        "from": migration.before,
        "to": migration.after,
        "n_added": rekeyed.n_new["record"],
        "n_trials_added": rekeyed.n_new["trial"],
        "unreadable": unreadable,
    }
    print_document(document, as_json, lambda: _print_migration(migration, rekeyed))
    for left in unreadable:
        say(f"[{left['code']}] left under the key {left['key']}: {left['message']}")
    if unreadable:
        raise typer.Exit(FAILED)


def _print_migration(migration: Migration, rekeyed: Rekeyed) -> None:
    location, before, after = migration.location, migration.before, migration.after
    if before == after:
        typer.echo(f"{location}: schema {after} is up to date")
    else:
        typer.echo(f"{location}: upgraded from schema {before} to {after}")
    n_records, n_trials = rekeyed.n_new["record"], rekeyed.n_new["trial"]
    if n_records or n_trials:
        numbers = f"{in_words(n_records, 'record')}, {in_words(n_trials, 'trial')}"
        typer.echo(f"added again under current keys: {numbers}")


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
    n_bytes = copy.stat().st_size
    document = {"file": str(copy), "format": form, "size_bytes": n_bytes}
    text = f"{copy}: {form}, {in_words(n_bytes, 'byte')}"
    print_document(document, as_json, lambda: typer.echo(text))


GC_EXAMPLES = """\b
Examples:
  feinsum db gc
  feinsum db gc --keep 10 --write
"""

N_SHOWN = 20
"""Maximum facts to print."""


def gc(
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Facts to keep besides those tied for the best, for each workload, "
            "device, driver, sizes and transform.",
        ),
    ] = 3,
    retracted: Annotated[
        bool,
        typer.Option("--retracted", help="Also remove retracted facts."),
    ] = False,
    write: Write = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the backup and the removed facts. Default: the folder of "
            "the database file; required for a server.",
        ),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Remove facts that no look-up can prefer.

    First backs up the database and writes the removed facts to a file that
    'feinsum db import' reads. Device limits, trials and retractions stay.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import collect_garbage, find_garbage

    with open_store(database, may_create=False) as store:
        # Removed facts are written to this folder first, so there must be one.
        backups = folder or (store.path.parent if store.path else None)
        if write and backups is None:
            raise typer.BadParameter("a database on a server needs --folder")
        with show_count("reading ...") as step:
            # one workload at a time: facts of different ones never compete
            groups = (store.query(key) for key in store.workloads())
            plan = find_garbage(count_items(groups, step), keep)
        # A retraction hides its fact for ever, so the fact itself is of no further use.
        if retracted:
            ids = tuple(fact.id for fact in store.retracted())
            plan = replace(plan, retracted=ids)
        collected = None
        if write and backups is not None and not plan.is_empty:
            collected = collect_garbage(store, plan, backups)
    document = {
        "n_records": plan.n_records,
        "surplus": [{**asdict(fact), "reason": fact.reason} for fact in plan.surplus],
        "retracted": plan.retracted,
        "n_removed": collected.n_removed if collected else 0,
        "backup": str(collected.backup) if collected else None,
        "removed": str(collected.removed) if collected else None,
    }
    print_document(document, as_json, lambda: _print_garbage(plan, collected))


def _print_garbage(plan: GarbagePlan, collected: Collected | None) -> None:
    shown = plan.surplus[:N_SHOWN]
    rows = [(entry.id[:ID_LENGTH], entry.reason, entry.recipe) for entry in shown]
    if rows:
        print_table(("record", "why"), (), rows, last="recipe")
    if n_more := len(plan.surplus) - len(rows):
        typer.echo(f"and {n_more} more; --json has all")
    n = in_words(plan.n_records, "record")
    typer.echo(f"{len(plan.surplus)} of {n} can be removed")
    if plan.retracted:
        typer.echo(f"{len(plan.retracted)} more are retracted and can be removed")
    if collected is None:
        advice = "" if plan.is_empty else "; remove them with --write"
        typer.echo(f"nothing was removed{advice}")
        return
    typer.echo(f"records removed: {collected.n_removed}")
    typer.echo(f"removed records: {collected.removed}")
    typer.echo(f"backup of the database: {collected.backup}")
