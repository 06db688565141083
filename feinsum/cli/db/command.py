"""``feinsum db``: the database of facts, its content, its copies."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import urlsplit

import typer

from feinsum.cli.db import audit, copies, exchange, lists, retract, upkeep
from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json

app = typer.Typer(
    rich_markup_mode=None,
    help="Inspect, copy and merge databases.",
    epilog="\b\nExample:\n  feinsum db info",
)


@app.command(
    epilog="\b\nExamples:\n  feinsum db info\n  feinsum db info --database team.sqlite"
)
def info(database: Database = None, as_json: AsJson = False) -> None:
    """Print how much a database holds."""
    from feinsum.db import open_store

    with open_store(database, may_create=False) as store:
        totals = asdict(store.info())
    if as_json:
        print_json(totals)
        return
    for name, value in totals.items():
        typer.echo(f"{name.removeprefix('n_').replace('_', ' ')}: {value}")


@app.command(epilog='\b\nExample:\n  ls -l "$(feinsum db path)"')
def path(as_json: AsJson = False) -> None:
    """Print the location of the default database, whether it exists or not."""
    from feinsum.db import default_location

    location = _without_password(default_location())
    if as_json:
        print_json({"path": location})
    else:
        typer.echo(location)


app.command(epilog=lists.STATS_EXAMPLES)(lists.stats)
app.command(epilog=lists.WORKLOADS_EXAMPLES)(lists.workloads)
app.command(epilog=lists.TRIALS_EXAMPLES)(lists.trials)
app.command(epilog=exchange.EXPORT_EXAMPLES)(exchange.export)
app.command("import", epilog=exchange.IMPORT_EXAMPLES)(exchange.import_)
app.command(epilog=exchange.DIFF_EXAMPLES)(exchange.diff)
app.command(epilog=exchange.MERGE_EXAMPLES)(exchange.merge)
app.command(epilog=audit.EXAMPLES)(audit.audit)
app.command(epilog=copies.BACKUP_EXAMPLES)(copies.backup)
app.command(epilog=retract.EXAMPLES)(retract.retract)
app.command(epilog=copies.SIGN_EXAMPLES)(copies.sign)
app.command(epilog=upkeep.GC_EXAMPLES)(upkeep.gc)
app.command(epilog=copies.MIGRATE_EXAMPLES)(copies.migrate)
app.command(epilog=upkeep.REKEY_EXAMPLES)(upkeep.rekey)


def _without_password(location: str) -> str:
    # The location is printed, and ends up in logs and terminals.
    password = urlsplit(location).password
    return location.replace(f":{password}@", ":***@", 1) if password else location
