"""``feinsum db init``, ``migrate``, ``stats``, ``backup`` and ``gc``."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import (
    ID_LENGTH,
    print_document,
    print_table,
    to_digits,
)
from feinsum.cli.shared.progress import count_items, show_count
from feinsum.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from feinsum.canonical import WorkloadKey
    from feinsum.db import SqlStore
    from feinsum.db.exchange.garbage import Collected, GarbagePlan
    from feinsum.db.exchange.rekeying import Rekeyed
    from feinsum.db.sql.statistics import DriverCount, Statistics, WorkloadCount
    from feinsum.db.sql.store import Migration
    from feinsum.records import Trial

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
    from feinsum.db.server.serving import open_serving_store

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
    from feinsum.db.exchange.rekeying import rekey
    from feinsum.db.sql.store import migrate

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
        numbers = (
            f"{format_count(n_records, 'record')}, {format_count(n_trials, 'trial')}"
        )
        typer.echo(f"added again under current keys: {numbers}")


STATS_EXAMPLES = """\b
Examples:
  feinsum db stats
  feinsum db stats --by-workload --limit 10 --database team.sqlite
  feinsum db stats --trials-of fe2-nauty2.8-0f7c --json
"""

KEY_LENGTH = 24
"""Characters of a key to show: its version, and enough to distinguish workloads."""


def stats(
    by_workload: Annotated[
        bool,
        typer.Option(
            "--by-workload",
            help="List the workloads instead, those with most facts first.",
        ),
    ] = False,
    trials_of: Annotated[
        str | None,
        typer.Option(
            "--trials-of",
            metavar="KEY",
            help="List the trials of the workload whose key begins so, fastest first.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of rows. Default: all."),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Count facts by device and driver, and by transform.

    The speed-up is the highest on record; the ratio of a trial is relative to the
    untransformed kernel. Failed trials come last, with the reason.
    """
    from feinsum.db import open_store

    if by_workload and trials_of is not None:
        raise typer.BadParameter("expected --by-workload or --trials-of KEY, not both")
    with open_store(database, may_create=False) as store:
        if by_workload:
            _print_workloads(store.listed_workloads(), limit, as_json)
        elif trials_of is not None:
            key = _find_workload(store, trials_of)
            _print_trials(key, sorted(store.trials(key), key=_sort_key), limit, as_json)
        else:
            statistics = store.stats()
            print_document(statistics, as_json, lambda: _print_stats(statistics))


def _print_stats(totals: Statistics) -> None:
    typer.echo(f"{totals.location}: schema {totals.schema_version}")
    typer.echo(f"records: {totals.n_records}, trials: {totals.n_trials}")
    typer.echo(f"plans: {totals.n_plans}, retractions: {totals.n_retractions}")
    typer.echo(f"workloads: {totals.n_workloads}, devices: {totals.n_devices}")
    typer.echo(f"bytes: {totals.size_bytes}")
    oldest, newest = _format_day(totals.oldest), _format_day(totals.newest)
    typer.echo(
        f"recorded: {oldest} to {newest}" if totals.oldest else "recorded: never"
    )
    print_table(
        ("device", "driver"),
        ("workloads", "records", "oldest", "newest"),
        [
            (
                _format_device(count),
                count.driver_version,
                f"{count.n_workloads}",
                f"{count.n_records}",
                _format_day(count.oldest),
                _format_day(count.newest),
            )
            for count in totals.drivers
        ],
    )
    print_table(
        ("transform",),
        ("workloads", "records", "highest speed-up"),
        [
            (
                f"{count.name}@{count.version}",
                f"{count.n_workloads}",
                f"{count.n_records}",
                to_digits(count.highest_speedup, 3),
            )
            for count in totals.transforms
        ],
    )


def _format_device(count: DriverCount) -> str:
    """Return a device with its microarchitecture, if that is known."""
    design = f", {count.microarchitecture}" if count.microarchitecture else ""
    return f"{count.device} ({count.platform}){design}"


def _format_day(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"


def _format_digits(value: float | None) -> str:
    return "-" if value is None else to_digits(value, 3)


def _print_workloads(
    counts: Sequence[WorkloadCount], limit: int | None, as_json: bool
) -> None:
    shown = counts[:limit]  # the total counts all of them
    rows = [
        (
            count.key[:KEY_LENGTH],
            f"{count.n_records}",
            f"{count.n_devices}",
            f"{count.n_trials}",
            _format_digits(count.highest_speedup),
            count.text,
        )
        for count in shown
    ]

    def show() -> None:
        headings = ("facts", "devices", "trials", "speed-up")
        print_table(("key",), headings, rows, last="einsum")
        typer.echo(f"workloads: {len(counts)}")

    print_document({"workloads": shown}, as_json, show)


def _find_workload(store: SqlStore, start: str) -> WorkloadKey:
    """Find the only workload with trials whose key begins like this."""
    keys = [key for key in store.tried() if key.startswith(start)]
    # A prefix of several keys is refused: the trials could belong to another workload.
    if len(keys) == 1:
        return keys[0]
    raise typer.BadParameter(
        f"{start!r} begins the keys of {format_count(len(keys), 'workload')} with "
        "trials, expected one; list them with 'feinsum db stats --by-workload'",
        param_hint="--trials-of",
    )


def _sort_key(trial: Trial) -> tuple[float, str, str]:
    # A failed trial has no ratio, and comes last.
    ratio = inf if trial.ratio is None else trial.ratio
    return ratio, trial.recorded_at, trial.id


def _make_trial_document(trial: Trial) -> dict[str, Any]:
    return {
        "spec": str(trial.spec),
        "status": trial.status,
        "message": trial.message,
        "median_s": trial.median_s,
        "ratio": trial.ratio,
        "sizes": dict(trial.sizes),
        "device": str(trial.environment.device),
        "driver_version": trial.environment.driver_version,
        "recorded_at": trial.recorded_at,
        "id": trial.id,
    }


def _print_trials(
    workload: str, trials: Sequence[Trial], limit: int | None, as_json: bool
) -> None:
    shown = trials[:limit]
    rows = [
        (
            trial.status,
            _format_digits(trial.median_s and trial.median_s * 1e3),
            _format_digits(trial.ratio),
            trial.environment.device.name,
            trial.recorded_at[:10],
            str(trial.spec),
        )
        for trial in shown
    ]

    def show() -> None:
        typer.echo(f"key: {workload}\ncanonical: {shown[0].workload_text}")
        headings = ("ms", "ratio", "device", "tried")
        print_table(("status",), headings, rows, last="recipe")
        for trial in shown:
            # Messages of compilers have many lines, which would break the table.
            if trial.message:
                typer.echo(f"{trial.spec}: {' '.join(trial.message.split())}")
        typer.echo(f"trials: {len(trials)}")

    document = {"key": workload, "trials": list(map(_make_trial_document, shown))}
    print_document(document, as_json, show)


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
    from feinsum.db.exchange.merging import back_up_store

    # Read-only: a backup must work from an account that may not write.
    with open_store(database, is_read_only=True) as store:
        copy = back_up_store(store, file)
        form = "JSON Lines" if store.path is None else "SQLite"
    n_bytes = copy.stat().st_size
    document = {"file": str(copy), "format": form, "size_bytes": n_bytes}
    text = f"{copy}: {form}, {format_count(n_bytes, 'byte')}"
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
    from feinsum.db.exchange.garbage import collect_garbage, find_garbage

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
    n = format_count(plan.n_records, "record")
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
