"""``feinsum db gc``."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum import words
from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table
from feinsum.cli.shared.progress import counted, counting

if TYPE_CHECKING:
    from feinsum.db.exchange import Collected, GarbagePlan

EXAMPLES = """\b
Examples:
  feinsum db gc
  feinsum db gc --keep 10 --write
"""

N_SHOWN = 20
"""How many facts are printed."""


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
        backups = folder or (store.path.parent if store.path else None)
        if write and backups is None:
            raise typer.BadParameter("a database on a server needs --folder")
        with counting("reading ...") as step:
            groups = (store.query(key) for key in store.workloads())
            plan = find_garbage(counted(groups, step), keep)
        if retracted:
            ids = tuple(fact.id for fact in store.retracted())
            plan = replace(plan, retracted=ids)
        collected = None
        if write and backups is not None and not plan.is_empty:
            collected = collect_garbage(store, plan, backups)
    if as_json:
        print_json(_document(plan, collected))
    else:
        _print(plan, collected)


def _document(plan: GarbagePlan, collected: Collected | None) -> dict[str, object]:
    return {
        "n_records": plan.n_records,
        "surplus": [
            {**asdict(entry), "reason": entry.reason} for entry in plan.surplus
        ],
        "retracted": list(plan.retracted),
        "n_removed": collected.n_removed if collected else 0,
        "backup": str(collected.backup) if collected else None,
        "removed": str(collected.removed) if collected else None,
    }


def _print(plan: GarbagePlan, collected: Collected | None) -> None:
    if plan.surplus:
        print_table(
            ("record", "why"),
            (),
            [
                (entry.id[:ID_LENGTH], entry.reason, entry.recipe)
                for entry in plan.surplus[:N_SHOWN]
            ],
            last="recipe",
        )
    n_more = len(plan.surplus) - N_SHOWN
    if n_more > 0:
        typer.echo(f"and {n_more} more; --json has all")
    n = words.counted(plan.n_records, "record")
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
